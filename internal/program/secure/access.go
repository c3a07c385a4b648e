package secure

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/reload"
)

// Settings say how a program's HTTP servers are protected.
type Settings struct {
	TokensFile string
	Anonymous  bool
	CertFile   string
	KeyFile    string
	ClientCA   string
	HostNames  []string // see Names
}

// Address is a setting of where a program listens; an empty value is nowhere.
type Address struct {
	Setting string
	Value   *string
}

// Declare adds the settings to the set, for a program that listens at the
// addresses.
func (c *Settings) Declare(set *conf.Set, at ...Address) {
	set.Group("Access")
	set.String(&c.TokensFile, "tokens-file", "", `File of the bearer tokens that HTTP callers need: a YAML or JSON sequence
		of name, token (or its sha256), role (reader or operator), and where wanted tenant and expires; or a mapping of such
		tokens, and of tenants to limits, which kvrouter goes by. Read again when it changes. Without it everybody who can reach the port may do everything.`)
	set.Bool(&c.Anonymous, "allow-anonymous", false, `Listen beyond loopback without --tokens-file or --tls-client-ca, which is
		refused otherwise.`)
	set.String(&c.CertFile, "tls-cert", "", `PEM file of the HTTP servers' certificate, with the chain. Read again when it
		changes. Needs --tls-key. Without it they speak plain HTTP.`)
	set.String(&c.KeyFile, "tls-key", "", "PEM file of the certificate's key.")
	set.String(&c.ClientCA, "tls-client-ca", "", `PEM file of authorities: clients must show a certificate that one of them has
		signed. Read again when it changes.`)
	set.List(&c.HostNames, "host-names", nil, `Names, without ports, by which a proxy on this machine asks. A port on loopback without --tokens-file and --tls-cert is
		served only as localhost, by an address, or by one of these: else a site whose name means this machine now
		could read it with the browser of somebody here.`)
	set.Check(func() error {
		for _, a := range at {
			if err := c.permits(*a.Value, a.Setting); err != nil {
				return err
			}
		}
		_, err := c.Open(slog.New(slog.DiscardHandler))
		return err
	})
}

// Access knows who may ask. The zero value lets everybody on loopback do
// everything. It is safe for concurrent use.
type Access struct {
	settings Settings
	tokens   *reload.Value[tokens]     // nil: none are asked for
	certs    *reload.Value[tls.Config] // nil: plain HTTP
	now      func() time.Time
}

// Open reads the files that the settings name.
func (c Settings) Open(log *slog.Logger) (*Access, error) { return c.open(log, time.Now) }

func (c Settings) open(log *slog.Logger, now func() time.Time) (a *Access, err error) {
	a = &Access{settings: c, now: now}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return nil, errors.New("TLS needs both --tls-cert and --tls-key")
	}
	if c.ClientCA != "" && c.CertFile == "" {
		return nil, errors.New("--tls-client-ca needs --tls-cert and --tls-key")
	}
	if c.TokensFile != "" {
		a.tokens, err = reload.Open(log, now, func() (*tokens, error) { return readTokens(c.TokensFile) }, c.TokensFile)
		if err != nil {
			return nil, err
		}
	}
	if c.CertFile != "" {
		paths := []string{c.CertFile, c.KeyFile}
		if c.ClientCA != "" {
			paths = append(paths, c.ClientCA)
		}
		read := func() (*tls.Config, error) { return readTLS(c.CertFile, c.KeyFile, c.ClientCA) }
		if a.certs, err = reload.Open(log, now, read, paths...); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// Listen opens the address, or refuses to where that would let anybody in.
// setting is the flag that the address is from.
func (a *Access) Listen(ctx context.Context, address, setting string) (net.Listener, error) {
	if err := a.settings.permits(address, setting); err != nil {
		return nil, err
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("opening the address of --%s: %w", setting, err)
	}
	return ln, nil
}

// permits returns why the program must not listen at the address; "" is nowhere.
func (c *Settings) permits(address, setting string) error {
	if address == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.DefaultResolver.LookupPort(context.Background(), "tcp", port)
	}
	switch {
	case err != nil:
		return fmt.Errorf("--%s %s: give host:port: %w", setting, address, err)
	case c.TokensFile == "" && c.ClientCA == "" && !c.Anonymous && !loopback(host):
		return fmt.Errorf("--%s %s is reachable from other machines: give --tokens-file or --tls-client-ca, or --allow-anonymous", setting, address)
	}
	return nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// TLS returns ln with TLS if there are certificates, which each handshake
// takes as they are then. Plain connections are closed. Clients may have HTTP/1.1, and
// before that what the server speaks besides.
func (a *Access) TLS(ln net.Listener, besides ...string) net.Listener {
	if a.certs == nil {
		return ln
	}
	return tls.NewListener(ln, &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c := a.certs.Get()
			if len(besides) > 0 {
				c = c.Clone()
				c.NextProtos = append(slices.Clone(besides), c.NextProtos...)
			}
			return c, nil
		},
	})
}

// Refusal is why a caller may not ask.
type Refusal uint8

// The refusals, the first of which is none.
const (
	Allowed         Refusal = iota
	Unauthenticated         // no token, or one that is unknown or expired: 401
	Forbidden               // the token's role is too low: 403
)

// Check says whether a request with the Authorization header may do what
// needs the role, and who it is from. Without tokens everybody may.
func (a *Access) Check(authorization []byte, needs Role) (Caller, Refusal) {
	if a.tokens == nil {
		return Caller{Name: "anonymous", Role: Operator}, Allowed
	}
	if needs == Anybody {
		return Caller{Name: "anonymous"}, Allowed
	}
	const scheme = "bearer "
	if len(authorization) <= len(scheme) || !bytes.EqualFold(authorization[:len(scheme)], []byte(scheme)) {
		return Caller{}, Unauthenticated
	}
	c, ok := a.tokens.Get().find(bytes.TrimSpace(authorization[len(scheme):]), a.now())
	switch {
	case !ok:
		return Caller{}, Unauthenticated
	case c.Role < needs:
		return c, Forbidden
	}
	return c, Allowed
}

// Guarded reports whether callers need tokens.
func (a *Access) Guarded() bool { return a.tokens != nil }

// HasTLS reports whether servers speak TLS.
func (a *Access) HasTLS() bool { return a.certs != nil }
