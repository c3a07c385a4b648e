package secure

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"

	"github.com/kvatlas/kvatlas/internal/program/reload"
)

const maxPEM = 1 << 20

// readTLS reads the certificates into the configuration of a server.
func readTLS(cert, key, clientCA string) (*tls.Config, error) {
	for _, path := range []string{cert, key} {
		if _, err := reload.Read(path, maxPEM); err != nil {
			return nil, fmt.Errorf("TLS: %w", err)
		}
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("TLS: certificate %s and key %s: %w", cert, key, err)
	}
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair},
		NextProtos: []string{"http/1.1"},
	}
	if clientCA != "" {
		if cfg.ClientCAs, err = Roots(clientCA); err != nil {
			return nil, fmt.Errorf("client certificates: %w", err)
		}
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return cfg, nil
}

// Roots reads the certificates of authorities, which sign what is trusted.
func Roots(path string) (*x509.CertPool, error) {
	pem, err := reload.Read(path, maxPEM)
	if err != nil {
		return nil, fmt.Errorf("TLS: certificates of authorities: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("TLS: %s has no certificate in PEM", path)
	}
	return pool, nil
}
