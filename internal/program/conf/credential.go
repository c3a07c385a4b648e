package conf

import (
	"fmt"
	"log/slog"
)

// Credential is a text that nothing prints: whoever needs it asks for it.
type Credential string

// Reveal returns the text.
func (c Credential) Reveal() string { return string(c) }

// String implements fmt.Stringer.
func (c Credential) String() string {
	if c == "" {
		return ""
	}
	return hidden
}

// GoString implements fmt.GoStringer.
func (c Credential) GoString() string { return c.String() }

// Format implements fmt.Formatter: no verb shows more.
func (c Credential) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(c.String())) }

// MarshalText implements encoding.TextMarshaler, for JSON and YAML.
func (c Credential) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// LogValue implements slog.LogValuer.
func (c Credential) LogValue() slog.Value { return slog.StringValue(c.String()) }

// Credential declares a setting that is a secret as a whole, and empty by default.
func (s *Set) Credential(p *Credential, name, help string, opts ...Option) {
	add(s, p, name, kindCredential, "", help, append(opts, Secret()),
		func(text string) (Credential, error) { return Credential(text), nil }, Credential.Reveal)
}

const kindCredential = "credential"
