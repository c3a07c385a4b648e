package secure

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kvatlas/kvatlas/internal/program/reload"
)

// Role says what a caller may do. A higher one may do what a lower one may.
type Role uint8

// The roles.
const (
	Anybody  Role = iota // health and version: no token is asked for
	Reader               // find out what is where
	Operator             // change state, and see what is no tenant's
)

// String returns the role's name in files.
func (r Role) String() string { return [...]string{"anybody", "reader", "operator"}[r] }

// Caller is who a request comes from.
type Caller struct {
	Name   string // for logs
	Role   Role
	Tenant *string // the only routing group that the caller may see; nil: all
	// Account is for whom the caller's requests count: its tenant, or else its name.
	Account string
	Limits  *Limits // of the account; nil: none
}

const (
	minToken      = 16 // bytes; shorter ones can be guessed
	maxTokens     = 1024
	maxTokensFile = 1 << 20
)

// tokens is a file of tokens, as it was read.
type tokens struct {
	list   []token
	limits map[string]*Limits // by account
}

type token struct {
	sum     [sha256.Size]byte
	caller  Caller
	expires time.Time // zero: never
}

// tokenEntry is one token in the file.
type tokenEntry struct {
	Name    string    `yaml:"name"`
	Token   string    `yaml:"token"`
	SHA256  string    `yaml:"sha256"` // in place of token: of its bytes, in hex
	Role    string    `yaml:"role"`
	Tenant  *string   `yaml:"tenant"`
	Expires time.Time `yaml:"expires"`
}

// readTokens reads a file of tokens: a YAML or JSON sequence, or a mapping of that as
// tokens, and of tenants' limits.
func readTokens(path string) (*tokens, error) {
	data, err := reload.Read(path, maxTokensFile)
	if err != nil {
		return nil, fmt.Errorf("tokens: %w", err)
	}
	var file struct {
		Tokens  []tokenEntry       `yaml:"tokens"`
		Tenants map[string]*Limits `yaml:"tenants"`
	}
	var form yaml.Node
	into := any(&file)
	if yaml.Unmarshal(data, &form) == nil && len(form.Content) > 0 && form.Content[0].Kind != yaml.MappingNode {
		into = &file.Tokens
	}
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(into); err != nil && !errors.Is(err, io.EOF) {
		// Not the error itself, which quotes the file.
		return nil, fmt.Errorf("tokens: %s is no sequence of name, token or sha256, role, tenant and expires, and no mapping of such tokens "+
			"and of tenants to requests, tokens, per, weight and priority", path)
	}
	if len(file.Tokens) == 0 || len(file.Tokens) > maxTokens {
		return nil, fmt.Errorf("tokens: %s has %d tokens, give 1 to %d", path, len(file.Tokens), maxTokens)
	}
	list := &tokens{list: make([]token, len(file.Tokens)), limits: file.Tenants}
	for name, l := range list.limits {
		if err := l.check(); err != nil {
			return nil, fmt.Errorf("tokens: %s: tenant %q: %w", path, name, err)
		}
	}
	for i := range file.Tokens {
		t := &list.list[i]
		if *t, err = file.Tokens[i].token(); err != nil {
			return nil, fmt.Errorf("tokens: %s: entry %d (%q): %w", path, i, file.Tokens[i].Name, err)
		}
		t.caller.Limits = list.of(t.caller.Account)
	}
	return list, nil
}

func (e *tokenEntry) token() (t token, err error) {
	switch {
	case (e.Token == "") == (e.SHA256 == ""):
		return t, errors.New("give token or sha256")
	case e.Token != "" && len(e.Token) < minToken:
		return t, fmt.Errorf("the token has less than %d bytes; `openssl rand -hex 32` makes a good one", minToken)
	case e.Token != "" && strings.ContainsFunc(e.Token, func(r rune) bool { return r <= ' ' || r >= 0x7F }):
		return t, errors.New("the token has characters that a header cannot carry")
	case e.Token != "":
		t.sum = sha256.Sum256([]byte(e.Token))
	default:
		sum, err := hex.DecodeString(e.SHA256)
		if err != nil || len(sum) != sha256.Size {
			return t, errors.New("sha256 is not 64 hexadecimal digits")
		}
		t.sum = [sha256.Size]byte(sum)
	}
	t.caller, t.expires = Caller{Name: e.Name, Tenant: e.Tenant, Account: e.Name}, e.Expires
	if e.Tenant != nil && *e.Tenant != "" {
		t.caller.Account = *e.Tenant
	}
	switch e.Role {
	case Reader.String():
		t.caller.Role = Reader
	case Operator.String():
		t.caller.Role = Operator
	default:
		return t, fmt.Errorf("role %q is neither reader nor operator", e.Role)
	}
	return t, nil
}

// find returns the caller of a token. It looks at all of them, and for equal
// ones the last counts.
func (f *tokens) find(text []byte, now time.Time) (c Caller, ok bool) {
	sum := sha256.Sum256(text)
	at := -1
	for i := range f.list {
		at = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(sum[:], f.list[i].sum[:]), i, at)
	}
	if at < 0 {
		return Caller{}, false
	}
	t := &f.list[at]
	return t.caller, t.expires.IsZero() || now.Before(t.expires)
}
