package secure

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/reload"
)

// Dial is how a server is met that speaks TLS: whose certificates it may show, and what it is
// shown. All are PEM files, and may be empty.
type Dial struct{ CA, Cert, Key string }

// Open returns what connections are made with; nil for the usual. names is what the settings
// begin with that the files are from. The certificate is read again when it changes.
func (d Dial) Open(log *slog.Logger, names string) (*tls.Config, error) {
	return d.open(log, time.Now, names)
}

func (d Dial) open(log *slog.Logger, now func() time.Time, names string) (c *tls.Config, err error) {
	if (d.Cert == "") != (d.Key == "") {
		return nil, fmt.Errorf("give both --%[1]s-cert and --%[1]s-key", names)
	}
	if d == (Dial{}) {
		return nil, nil
	}
	c = &tls.Config{MinVersion: tls.VersionTLS12}
	if d.CA != "" {
		if c.RootCAs, err = Roots(d.CA); err != nil {
			return nil, fmt.Errorf("--%s-ca: %w", names, err)
		}
	}
	if d.Cert == "" {
		return c, nil
	}
	certs, err := reload.Open(log, now, func() (*tls.Config, error) { return readTLS(d.Cert, d.Key, "") }, d.Cert, d.Key)
	if err != nil {
		return nil, fmt.Errorf("--%s-cert: %w", names, err)
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &certs.Get().Certificates[0], nil
	}
	return c, nil
}
