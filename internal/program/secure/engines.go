package secure

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/reload"
)

// EngineSettings say what a program shows engines of itself.
type EngineSettings struct {
	Token           conf.Credential
	CredentialsFile string
	CAFile          string
	CertFile        string
	KeyFile         string
}

// Declare adds the settings to the set.
func (c *EngineSettings) Declare(set *conf.Set) {
	set.Credential(&c.Token, "engine-token", `Bearer token for engines that --engine-credentials has none for.`)
	set.String(&c.CredentialsFile, "engine-credentials", "", `File of tokens for engines: a YAML or JSON sequence of token or
		token_file and, where wanted, name, model, group, worker, hosts and header. Read again when it, or a file that it names,
		changes.`)
	set.String(&c.CAFile, "engine-ca", "", "PEM file of authorities that certificates of https engines are checked with, in place of the system's. Read again when it changes.")
	set.String(&c.CertFile, "engine-cert", "", "PEM file of the certificate that https engines are shown; needs --engine-key. Read again when it changes.")
	set.String(&c.KeyFile, "engine-key", "", "PEM file of that certificate's key; needs --engine-cert.")
	set.Check(func() error {
		_, err := c.Open(slog.New(slog.DiscardHandler))
		return err
	})
}

// EngineID is what of an engine decides which credential it is shown.
type EngineID struct {
	Worker       uint64
	Name         string // of the worker, if its id was made from one
	Model, Group string
	Host         string // without a port
	Credential   string // the name of the one that it asks for; "" for what fits
}

// Engines knows what engines are shown. A nil one shows nothing. It is safe for
// concurrent use.
type Engines struct {
	token string
	list  *reload.Value[[]engineCredential]
	tls   *reload.Value[tls.Config]
}

// Open reads the files that the settings name.
func (c EngineSettings) Open(log *slog.Logger) (*Engines, error) { return c.open(log, time.Now) }

func (c EngineSettings) open(log *slog.Logger, now func() time.Time) (*Engines, error) {
	if err := headerValue(c.Token.Reveal()); err != nil {
		return nil, fmt.Errorf("--engine-token: %w", err)
	}
	e := &Engines{token: c.Token.Reveal()}
	var err error
	if e.tls, err = (Dial{CA: c.CAFile, Cert: c.CertFile, Key: c.KeyFile}).open(log, now, "engine"); err != nil {
		return nil, err
	}
	if c.CredentialsFile == "" {
		return e, nil
	}
	e.list, err = reload.OpenNaming(log, now, func() (*[]engineCredential, error) { return readEngineCredentials(c.CredentialsFile) }, tokenFiles, c.CredentialsFile)
	return e, err
}

// tokenFiles returns the files that the entries name.
func tokenFiles(list *[]engineCredential) (paths []string) {
	for _, x := range *list {
		if x.TokenFile != "" {
			paths = append(paths, x.TokenFile)
		}
	}
	return paths
}

// TLS returns what https connections to engines are made with; nil for the usual.
func (e *Engines) TLS() *reload.Value[tls.Config] {
	if e == nil {
		return nil
	}
	return e.tls
}

// Show sets the header by which the engine knows this program, if there is one for it.
// It reports false if the engine asks for a credential by a name that is not there, or
// not for its host.
func (e *Engines) Show(h http.Header, id *EngineID) (found bool) {
	if e == nil {
		return id.Credential == ""
	}
	var best *engineCredential
	if e.list != nil {
		most := -1
		list := *e.list.Get()
		for i := range list {
			if n := list[i].fits(id); n > most {
				best, most = &list[i], n
			}
		}
	}
	switch {
	case best != nil:
		h[best.Header] = []string{best.value}
	case id.Credential != "":
		return false
	case e.token != "":
		h["Authorization"] = []string{"Bearer " + e.token}
	}
	return true
}

// engineCredential is one entry of the file.
type engineCredential struct {
	Name      string   `yaml:"name"`
	Model     string   `yaml:"model"`
	Group     *string  `yaml:"group"`
	Worker    string   `yaml:"worker"`
	Hosts     []string `yaml:"hosts"`
	Token     string   `yaml:"token"`
	TokenFile string   `yaml:"token_file"`
	Header    string   `yaml:"header"`

	value string // of the header
}

// fits says how closely the entry fits the engine; below 0: not.
func (c *engineCredential) fits(id *EngineID) int {
	if len(c.Hosts) > 0 && !hostIn(c.Hosts, id.Host) {
		return -1
	}
	if id.Credential != "" {
		if c.Name != id.Credential {
			return -1
		}
		return 0
	}
	n := 0
	if c.Worker != "" {
		if c.Worker != fmt.Sprint(id.Worker) && c.Worker != id.Name {
			return -1
		}
		n += 4
	}
	if c.Model != "" {
		if c.Model != id.Model {
			return -1
		}
		n += 2
	}
	if c.Group != nil {
		if *c.Group != id.Group {
			return -1
		}
		n++
	}
	if n == 0 && c.Name != "" {
		return -1 // for those that ask for it
	}
	return n
}

func hostIn(hosts []string, host string) bool {
	for _, h := range hosts {
		if rest, any := strings.CutPrefix(h, "*"); strings.EqualFold(h, host) || any && len(host) > len(rest) && strings.EqualFold(host[len(host)-len(rest):], rest) {
			return true
		}
	}
	return false
}

// readEngineCredentials reads a file of them. Its errors quote nothing but names.
func readEngineCredentials(path string) (*[]engineCredential, error) {
	data, err := reload.Read(path, maxTokensFile)
	if err != nil {
		return nil, fmt.Errorf("engines' credentials: %w", err)
	}
	var list []engineCredential
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&list); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("engines' credentials: %s is no sequence of token or token_file, name, model, group, worker, hosts and header", path)
	}
	if len(list) == 0 || len(list) > maxTokens {
		return nil, fmt.Errorf("engines' credentials: %s has %d entries, give 1 to %d", path, len(list), maxTokens)
	}
	for i := range list {
		if err := list[i].read(); err != nil {
			return nil, fmt.Errorf("engines' credentials: %s: entry %d (%q): %w", path, i, list[i].Name, err)
		}
	}
	return &list, nil
}

func (c *engineCredential) read() error {
	if (c.Token == "") == (c.TokenFile == "") {
		return errors.New("give token or token_file")
	}
	token := c.Token
	if c.TokenFile != "" {
		data, err := reload.Read(c.TokenFile, maxTokensFile)
		if err != nil {
			return err
		}
		if token = strings.TrimSpace(string(data)); token == "" {
			return fmt.Errorf("%s is empty", c.TokenFile)
		}
	}
	if err := headerValue(token); err != nil {
		return err
	}
	for _, h := range c.Hosts {
		if h == "" || strings.Contains(strings.TrimPrefix(h, "*."), "*") || strings.ContainsAny(h, "/ ") {
			return fmt.Errorf("host %q: give a name or an address, or *.example.org", h)
		}
	}
	if c.Header == "" {
		c.Header, c.value = "Authorization", "Bearer "+token
		return nil
	}
	if strings.ContainsFunc(c.Header, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(":()<>@,;\\\"/[]?={}", r) }) {
		return fmt.Errorf("header %q is no name of a header", c.Header)
	}
	c.Header, c.value = http.CanonicalHeaderKey(c.Header), token
	return nil
}

func headerValue(token string) error {
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return errors.New("the token has characters that a header cannot carry")
	}
	return nil
}
