package secure

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/testing/clocktest"
	"github.com/kvatlas/kvatlas/internal/testing/securetest"
)

// clock is a time that tests move.
type clock struct{ at atomic.Pointer[time.Time] }

func newClock(at time.Time) *clock {
	c := new(clock)
	c.at.Store(&at)
	return c
}

func (c *clock) now() time.Time { return *c.at.Load() }

func (c *clock) advance(d time.Duration) {
	at := c.now().Add(d)
	c.at.Store(&at)
}

const (
	readerToken   = "reader-0123456789abcdef"
	operatorToken = "operator-0123456789abcdef"
	tenantToken   = "tenant-0123456789abcdef"
	endedToken    = "ended-0123456789abcdef"
)

func tokenFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	securetest.Replace(t, path, []byte(content))
	return path
}

func goodTokens() string {
	return fmt.Sprintf(`
- {name: gateway, token: %s, role: reader}
- {name: ops, sha256: %x, role: operator}
- {name: acme, token: %s, role: reader, tenant: acme}
- {name: guest, token: %s, role: operator, expires: 2026-01-02T03:04:05Z}
`, readerToken, sha256.Sum256([]byte(operatorToken)), tenantToken, endedToken)
}

func TestTokensSayWhoMayDoWhat(t *testing.T) {
	c := newClock(time.Date(2026, 1, 2, 3, 4, 4, 0, time.UTC))
	a, err := Settings{TokensFile: tokenFile(t, goodTokens())}.open(slog.New(slog.DiscardHandler), c.now)
	if err != nil {
		t.Fatal(err)
	}
	for header, want := range map[string][3]Refusal{ // of what anybody, a reader and an operator may
		"":                        {Allowed, Unauthenticated, Unauthenticated},
		"Bearer":                  {Allowed, Unauthenticated, Unauthenticated},
		"Bearer ":                 {Allowed, Unauthenticated, Unauthenticated},
		"Bearer wrong":            {Allowed, Unauthenticated, Unauthenticated},
		readerToken:               {Allowed, Unauthenticated, Unauthenticated},
		"Basic " + readerToken:    {Allowed, Unauthenticated, Unauthenticated},
		"Bearer " + readerToken:   {Allowed, Allowed, Forbidden},
		"bearer  " + readerToken:  {Allowed, Allowed, Forbidden},
		"Bearer " + operatorToken: {Allowed, Allowed, Allowed},
		"Bearer " + tenantToken:   {Allowed, Allowed, Forbidden},
		"Bearer " + endedToken:    {Allowed, Allowed, Allowed},
	} {
		for role, refusal := range want {
			if _, got := a.Check([]byte(header), Role(role)); got != refusal {
				t.Errorf("%q as %v: %v, want %v", header, Role(role), got, refusal)
			}
		}
	}
	if who, _ := a.Check([]byte("Bearer "+tenantToken), Reader); who.Tenant == nil || *who.Tenant != "acme" || who.Name != "acme" {
		t.Errorf("%+v", who)
	}
	c.advance(time.Second)
	if _, got := a.Check([]byte("Bearer "+endedToken), Reader); got != Unauthenticated {
		t.Errorf("a token is taken at its end: %v", got)
	}
	open := new(Access)
	if who, got := open.Check(nil, Operator); got != Allowed || who.Tenant != nil || open.Guarded() {
		t.Errorf("without tokens: %+v %v", who, got)
	}
}

func TestTokensAreReadAgain(t *testing.T) {
	path := tokenFile(t, goodTokens())
	var log bytes.Buffer
	c := newClock(time.Now())
	a, err := Settings{TokensFile: path}.open(slog.New(slog.NewTextHandler(&log, nil)), c.now)
	if err != nil {
		t.Fatal(err)
	}
	const next = "another-0123456789abcdef"
	may := func(token string) bool {
		_, r := a.Check([]byte("Bearer "+token), Reader)
		return r == Allowed
	}
	securetest.Replace(t, path, []byte("- {name: n, token: "+next+", role: reader}"))
	if !may(readerToken) || may(next) {
		t.Error("the file was looked at within the second")
	}
	c.advance(2 * time.Second)
	if may(readerToken) || !may(next) {
		t.Error("the new file is not in force")
	}
	securetest.Replace(t, path, []byte("- {name: n, token: secret-that-is-not-shown, role: king}"))
	if c.advance(2 * time.Second); !may(next) {
		t.Error("a damaged file took the tokens away")
	}
	if text := log.String(); !strings.Contains(text, "stays in force") || strings.Contains(text, "secret-that-is-not-shown") {
		t.Errorf("log: %s", text)
	}
	securetest.Replace(t, path, []byte(goodTokens()))
	if c.advance(2 * time.Second); !may(readerToken) || may(next) {
		t.Error("the mended file is not in force")
	}
	securetest.Replace(t, path, []byte("- {name: n, token: "+next+", role: reader}"))
	back := clocktest.Set(t, c.now().Add(2*time.Second), -3600)
	if c.at.Store(&back); may(readerToken) || !may(next) {
		t.Error("the clock was set back, and a token that was taken away is still in force")
	}
}

func TestBadTokenFilesAreRefused(t *testing.T) {
	for _, content := range []string{
		"", "[]", "tokens: x", "- x", "- {name: n, token: 0123456789abcdef}", "- {token: short, role: reader}",
		"- {token: 0123456789abcdef, sha256: x, role: reader}", "- {sha256: abcd, role: reader}", "- {token: '0123456789 abcdef', role: reader}",
		"- {token: 0123456789abcdef, role: admin}", "- {token: 0123456789abcdef, role: reader, x: 1}",
		"- {token: 0123456789abcdef, role: reader, expires: never}", "- {role: reader}", strings.Repeat(" ", maxTokensFile+1),
	} {
		_, err := Settings{TokensFile: tokenFile(t, content)}.Open(slog.New(slog.DiscardHandler))
		if err == nil || strings.Contains(err.Error(), "0123456789abcdef") {
			t.Errorf("%.60q: %v", content, err)
		}
	}
	for _, c := range []Settings{{TokensFile: "/nowhere"}, {CertFile: "x"}, {KeyFile: "x"}, {ClientCA: "x"}, {CertFile: "/nowhere", KeyFile: "/nowhere"}} {
		if _, err := c.Open(slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}

func TestListeningBeyondLoopbackNeedsAGuard(t *testing.T) {
	tokens := tokenFile(t, goodTokens())
	for _, c := range []struct {
		address string
		with    Settings
		refused bool
	}{
		{"127.0.0.1:0", Settings{}, false}, {"localhost:0", Settings{}, false},
		{"0.0.0.0:0", Settings{}, true}, {":0", Settings{}, true}, {"[::]:0", Settings{}, true}, {"10.255.255.1:0", Settings{}, true}, {"example.org:0", Settings{}, true},
		{"0.0.0.0:0", Settings{Anonymous: true}, false}, {"0.0.0.0:0", Settings{TokensFile: tokens}, false},
	} {
		a, err := c.with.Open(slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ln, err := a.Listen(t.Context(), c.address, "http-listen")
		if err == nil {
			err = ln.Close()
		}
		if refused := err != nil && strings.Contains(err.Error(), "allow-anonymous"); refused != c.refused {
			t.Errorf("%s %+v: %v", c.address, c.with, err)
		}
	}
}

// tlsServer answers over TLS what an Access lets in.
func tlsServer(t *testing.T, c Settings, k *clock) (address string) {
	t.Helper()
	a, err := c.open(slog.New(slog.DiscardHandler), k.now)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := a.Listen(t.Context(), "127.0.0.1:0", "x")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })}
	done := make(chan error, 1)
	go func() { done <- s.Serve(a.TLS(ln)) }() // ends with Close
	t.Cleanup(func() {
		_ = s.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return ln.Addr().String()
}

// get makes one request on a connection of its own and returns the serial
// number of the certificate that the server showed.
func get(address string, cfg *tls.Config) (*big.Int, error) {
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}, Timeout: time.Minute}
	resp, err := c.Get("https://" + address + "/") //nolint:noctx // the client has a timeout
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "ok" {
		return nil, fmt.Errorf("%q, %w", body, err)
	}
	return resp.TLS.PeerCertificates[0].SerialNumber, nil
}

// TestCertificatesRotateUnderLoad replaces the certificate while clients keep
// asking: no request fails, and new connections get the new one.
func TestCertificatesRotateUnderLoad(t *testing.T) {
	ca, dir, k := securetest.New(t), t.TempDir(), newClock(time.Now())
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	ca.Issue("one", cert, key)
	address := tlsServer(t, Settings{CertFile: cert, KeyFile: key}, k)
	client := ca.Client()
	var clients sync.WaitGroup
	stop := make(chan struct{})
	var requests atomic.Int64
	for range 4 {
		clients.Go(func() {
			for {
				if _, err := get(address, client); err != nil {
					t.Errorf("a request failed: %v", err)
					return
				}
				requests.Add(1)
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for range 5 {
		serial := ca.Issue("next", cert, key)
		k.advance(2 * time.Second)
		deadline := time.Now().Add(time.Minute)
		for {
			got, err := get(address, client)
			if err != nil {
				t.Fatal(err)
			}
			if got.Cmp(serial) == 0 {
				break
			}
			// Whoever looked between the two files' renames kept the old pair.
			if k.advance(2 * time.Second); time.Now().After(deadline) {
				t.Fatal("the new certificate is not shown")
			}
		}
	}
	close(stop)
	clients.Wait()
	if requests.Load() == 0 {
		t.Error("no requests were made")
	}
}

func TestClientCertificates(t *testing.T) {
	ca, other, dir, k := securetest.New(t), securetest.New(t), t.TempDir(), newClock(time.Now())
	path := func(name string) string { return filepath.Join(dir, name) }
	ca.Issue("server", path("cert"), path("key"))
	ca.Issue("client", path("client"), path("clientkey"))
	other.Issue("stranger", path("stranger"), path("strangerkey"))
	address := tlsServer(t, Settings{CertFile: path("cert"), KeyFile: path("key"), ClientCA: ca.File}, k)
	if _, err := get(address, ca.Client(path("client"), path("clientkey"))); err != nil {
		t.Error(err)
	}
	if _, err := get(address, ca.Client()); err == nil {
		t.Error("a client without a certificate is let in")
	}
	if _, err := get(address, ca.Client(path("stranger"), path("strangerkey"))); err == nil {
		t.Error("a client with another authority's certificate is let in")
	}
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if answer, _ := io.ReadAll(c); strings.Contains(string(answer), "200") {
		t.Errorf("plain HTTP is answered: %q", answer)
	}
}
