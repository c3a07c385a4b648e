package kube

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/secure"
)

// account is where a pod finds who it is.
const account = "/var/run/secrets/kubernetes.io/serviceaccount"

// Config says where the API server is. The zero value is the pod's own.
type Config struct {
	URL       string            // http(s)://host:port; empty: what the pod's environment says
	TokenFile string            // read again for each request; empty: the pod's, or none with a URL
	CAFile    string            // empty: the pod's, or the system's with a URL
	Transport http.RoundTripper // nil: one of its own
}

// Declare adds the settings to the set, and that of the namespace in which it is read.
func (c *Config) Declare(set *conf.Set, namespace *string) {
	set.String(namespace, "kube-namespace", "", "Namespace of what is read of Kubernetes. Empty: the one that this program is in.")
	set.String(&c.URL, "kube-api", "", "URL of the API server, for a program outside of the cluster (that of kubectl proxy, say).")
	set.String(&c.TokenFile, "kube-token-file", "", "File of the bearer token for the API server. Read again for each request. Empty: the service account's.")
	set.String(&c.CAFile, "kube-ca", "", "PEM file of the authorities of the API server's certificate. Empty: the service account's.")
}

// name is what objects may be called.
var name = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)

// IsName reports whether objects and namespaces may be called so.
func IsName(text string) bool { return name.MatchString(text) }

// Client asks an API server.
type Client struct {
	base  string
	token string // a file; "" for none
	http  *http.Client
}

// StatusError is an answer of the API server that says no.
type StatusError struct {
	Code    int
	Message string
}

// Error implements error.
func (e *StatusError) Error() string {
	text := "the API server answers " + strconv.Itoa(e.Code)
	if e.Message != "" {
		text += ": " + e.Message
	}
	if e.Code == http.StatusForbidden || e.Code == http.StatusUnauthorized {
		text += " (may this service account get, list and watch it?)"
	}
	return text
}

// Namespace returns the namespace of the pod that this process is in; "" outside.
func Namespace() string {
	text, err := os.ReadFile(filepath.Join(account, "namespace"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// New returns a client. It does not connect yet.
func New(cfg Config) (*Client, error) {
	if cfg.URL == "" {
		host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
		if host == "" || port == "" {
			return nil, errors.New("this is no pod of Kubernetes (KUBERNETES_SERVICE_HOST is not set): say where the API server is")
		}
		cfg.URL = "https://" + net.JoinHostPort(host, port)
		if cfg.TokenFile == "" {
			cfg.TokenFile = filepath.Join(account, "token")
		}
		if cfg.CAFile == "" {
			cfg.CAFile = filepath.Join(account, "ca.crt")
		}
	}
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("the API server's URL is no http(s)://host:port without a user")
	}
	settings := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.CAFile != "" {
		if settings.RootCAs, err = secure.Roots(cfg.CAFile); err != nil {
			return nil, fmt.Errorf("authorities of the API server: %w", err)
		}
	}
	if cfg.Transport == nil {
		cfg.Transport = &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
			TLSClientConfig:     settings,
			TLSHandshakeTimeout: 10 * time.Second,
			ForceAttemptHTTP2:   true,
			// A watch whose server vanished without a word is noticed by pings.
			HTTP2:                 &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second},
			ResponseHeaderTimeout: 30 * time.Second,
			IdleConnTimeout:       90 * time.Second,
		}
	}
	return &Client{base: strings.TrimSuffix(cfg.URL, "/"), token: cfg.TokenFile, http: &http.Client{
		Transport: cfg.Transport,
		// The token is for this server only.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// maxStatus bounds what is read of an answer that says no.
const maxStatus = 64 << 10

// get asks for path. An answer other than 200 is a StatusError.
func (c *Client) get(ctx context.Context, path string, query url.Values) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path+"?"+query.Encode(), nil)
	if err != nil {
		return nil, fmt.Errorf("making the request: %w", err)
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "kvatlas")
	if c.token != "" { // the kubelet replaces it
		token, err := os.ReadFile(c.token)
		if err != nil {
			return nil, fmt.Errorf("token for the API server: %w", err)
		}
		r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	var status struct{ Message string }
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxStatus)) // what there is of it
	if json.Unmarshal(body, &status) != nil {
		status.Message = strings.ToValidUTF8(string(body[:min(len(body), 200)]), "")
	}
	return nil, &StatusError{Code: resp.StatusCode, Message: status.Message}
}
