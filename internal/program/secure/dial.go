package secure

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/reload"
)

// Dial is how a server is met that speaks TLS: whose certificates it may show, and what it is
// shown. All are PEM files, and may be empty.
type Dial struct{ CA, Cert, Key string }

// Open returns what connections are made with, read again when a file changes, for those that
// are made then; nil for the usual. names is what the settings begin with that the files are from.
func (d Dial) Open(log *slog.Logger, names string) (*reload.Value[tls.Config], error) {
	return d.open(log, time.Now, names)
}

func (d Dial) open(log *slog.Logger, now func() time.Time, names string) (*reload.Value[tls.Config], error) {
	if (d.Cert == "") != (d.Key == "") {
		return nil, fmt.Errorf("give both --%[1]s-cert and --%[1]s-key", names)
	}
	var paths []string
	for _, path := range []string{d.CA, d.Cert, d.Key} {
		if path != "" {
			paths = append(paths, path)
		}
	}
	if paths == nil {
		return nil, nil
	}
	return reload.Open(log, now, func() (*tls.Config, error) { return d.read(names) }, paths...)
}

func (d Dial) read(names string) (c *tls.Config, err error) {
	c = &tls.Config{MinVersion: tls.VersionTLS12}
	if d.CA != "" {
		if c.RootCAs, err = Roots(d.CA); err != nil {
			return nil, fmt.Errorf("--%s-ca: %w", names, err)
		}
	}
	if d.Cert == "" {
		return c, nil
	}
	own, err := readTLS(d.Cert, d.Key, "")
	if err != nil {
		return nil, fmt.Errorf("--%s-cert: %w", names, err)
	}
	// It is shown whichever authorities the server names.
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &own.Certificates[0], nil }
	return c, nil
}

// Dialer makes connections.
type Dialer func(ctx context.Context, network, address string) (net.Conn, error)

// handshakeTime bounds a TLS handshake: http.Transport dials on for those to come when who wanted the connection has
// given up, so that a server which takes connections and says nothing would hold all of them.
const handshakeTime = 10 * time.Second

// Into has t make its connections by dial, and those of https as TLS has it.
func (dial Dialer) Into(t *http.Transport, with *reload.Value[tls.Config]) {
	t.DialContext, t.DialTLSContext, t.TLSHandshakeTimeout = dial, dial.TLS(with), handshakeTime
}

// TLS returns what makes connections over those of dial, each with what is in force by then; nil where that is the usual.
// (The authorities of one tls.Config are the same for ever, and what else it has verify is not told the address of a server
// that has no name.)
func (dial Dialer) TLS(with *reload.Value[tls.Config]) Dialer {
	if with == nil {
		return nil
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, fmt.Errorf("dialling: %w", err)
		}
		n, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, handshakeTime)
		defer cancel()
		c := with.Get().Clone()
		c.ServerName = host
		secured := tls.Client(n, c)
		if err := secured.HandshakeContext(ctx); err != nil {
			_ = n.Close() // of no use
			return nil, err
		}
		return secured, nil
	}
}
