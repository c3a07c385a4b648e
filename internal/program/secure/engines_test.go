package secure

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/reload"
	"github.com/kvatlas/kvatlas/internal/testing/securetest"
)

// The closest entry counts; a name is for who asks for it, and a host for itself.
func TestWhatEnginesAreShown(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "list"), filepath.Join(dir, "token")
	securetest.Replace(t, other, []byte("from-file\n"))
	list := `[{token: all}, {model: m, token: model}, {model: m, group: "", token: default-group}, {worker: "7", token: seven}, {worker: pod, token_file: ` + other + `},
		{name: pool, token: pool, header: x-api-key}, {name: held, token: held, hosts: [10.0.0.7, "*.engines.example"]}, {model: h, token: h, hosts: ["*.x"]}]`
	securetest.Replace(t, path, []byte(list))
	now, step := time.Now(), time.Duration(0)
	clock := func() time.Time { now = now.Add(step); return now }
	e, err := EngineSettings{Token: "rest", CredentialsFile: path}.open(slog.New(slog.DiscardHandler), clock)
	if err != nil {
		t.Fatal(err)
	}
	show := func(id EngineID) string {
		h := http.Header{"Authorization": {"client"}}
		found := e.Show(h, &id)
		return fmt.Sprint(h.Get("Authorization"), " ", h.Get("X-Api-Key"), " ", found)
	}
	for _, c := range []struct {
		id   EngineID
		want string
	}{
		{EngineID{Model: "x"}, "Bearer all  true"}, {EngineID{Model: "m", Group: "g"}, "Bearer model  true"}, {EngineID{Model: "m"}, "Bearer default-group  true"},
		{EngineID{Model: "m", Worker: 7}, "Bearer seven  true"}, {EngineID{Worker: 99, Name: "pod"}, "Bearer from-file  true"},
		{EngineID{Model: "m", Credential: "pool"}, "client pool true"}, {EngineID{Credential: "none"}, "client  false"},
		{EngineID{Credential: "held", Host: "10.0.0.7"}, "Bearer held  true"}, {EngineID{Credential: "held", Host: "a.engines.example"}, "Bearer held  true"},
		{EngineID{Credential: "held", Host: "evil"}, "client  false"}, {EngineID{Credential: "held", Host: "evilengines.example"}, "client  false"},
		{EngineID{Credential: "held", Host: ".engines.example"}, "client  false"},
		{EngineID{Model: "h", Host: "a.x"}, "Bearer h  true"}, {EngineID{Model: "h", Host: "a.y"}, "Bearer all  true"},
	} {
		if got := show(c.id); got != c.want {
			t.Errorf("%+v is shown %q, want %q", c.id, got, c.want)
		}
	}
	step = 2 * reload.LookEvery
	securetest.Replace(t, other, []byte("rotated"))
	if got := show(EngineID{Name: "pod"}); got != "Bearer rotated  true" {
		t.Errorf("after the change: %q", got)
	}
	securetest.Replace(t, path, []byte("[{model: z, token: z}]"))
	if got := show(EngineID{Model: "m"}); got != "Bearer rest  true" {
		t.Errorf("without an entry: %q", got)
	}
	// Files that the changed one names count from now on, and one that comes after it.
	later := filepath.Join(dir, "later")
	securetest.Replace(t, path, []byte("[{model: z, token_file: "+later+"}]"))
	if got := show(EngineID{Model: "z"}); got != "Bearer z  true" {
		t.Errorf("while the file is not there: %q", got)
	}
	for _, text := range []string{"first", "second"} {
		securetest.Replace(t, later, []byte(text))
		if got := show(EngineID{Model: "z"}); got != "Bearer "+text+"  true" {
			t.Errorf("the file that was named anew has %s: %q", text, got)
		}
	}
	var none *Engines
	h := http.Header{}
	if !none.Show(h, &EngineID{}) || len(h) != 0 || none.TLS() != nil {
		t.Error("nobody shows something")
	}
}

// What is wrong with a file is told without what is secret in it.
func TestEnginesFilesThatAreRefused(t *testing.T) {
	for _, text := range []string{"", "[]", "hunter2", "[{token: hunter2, name: [}]", "[{name: a}]", "[{token: hunter2, token_file: /x}]", "[{token: \"hunter2\\r\\nX: y\"}]",
		"[{token_file: /nowhere}]", "[{token: hunter2, header: \"a: b\"}]", "[{token: hunter2, hosts: [\"*\"]}]", "[{token: hunter2, tokn: hunter2}]", "[{token: hunter2, hosts: [http://x]}]"} {
		path := filepath.Join(t.TempDir(), "list")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := (EngineSettings{CredentialsFile: path}).Open(slog.New(slog.DiscardHandler)); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, c := range []EngineSettings{{Token: "hunter2 x"}, {CertFile: "x"}, {CAFile: "/nowhere"}, {CertFile: "/nowhere", KeyFile: "/nowhere"}} {
		if _, err := c.Open(slog.New(slog.DiscardHandler)); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// An https engine is taken for what its certificate says: one of the named authorities', for its host, in its
// time, and a server's; and it is shown a certificate, the one that is in the file by then.
func TestEnginesCertificates(t *testing.T) {
	ours, other := securetest.New(t), securetest.New(t)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	ours.Issue("router", file("router.pem"), file("router.key"))
	now, step := time.Now(), time.Duration(0)
	clock := func() time.Time { now = now.Add(step); return now }
	e, err := EngineSettings{CAFile: ours.File, CertFile: file("router.pem"), KeyFile: file("router.key")}.open(slog.New(slog.DiscardHandler), clock)
	if err != nil {
		t.Fatal(err)
	}
	serve := func(clients *tls.Config) string { // with what is in engine.pem
		pair, err := tls.LoadX509KeyPair(file("engine.pem"), file("engine.key"))
		if err != nil {
			t.Fatal(err)
		}
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		s.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientCAs: clients.RootCAs, ClientAuth: tls.RequireAndVerifyClientCert}
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.StartTLS()
		t.Cleanup(s.Close)
		return s.URL
	}
	ask := func(url string) error {
		dial := Dialer(new(net.Dialer).DialContext)
		client := &http.Client{Transport: &http.Transport{DialTLSContext: dial.TLS(e.TLS()), DisableKeepAlives: true}}
		resp, err := client.Get(url) //nolint:noctx // a test's own server
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	}
	for _, c := range []struct {
		name   string
		by     *securetest.Authority
		change func(c *x509.Certificate)
		want   string // of the error
	}{
		{"good", ours, func(*x509.Certificate) {}, ""},
		{"another authority's", other, func(*x509.Certificate) {}, "unknown authority"},
		{"another host's", ours, func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = []net.IP{net.IPv4(127, 0, 0, 9)}, nil }, "not 127.0.0.1"},
		{"nobody's", ours, func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, nil }, "doesn't contain any IP SANs"},
		{"expired", ours, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, "expired"},
		{"not yet valid", ours, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) }, "not yet valid"},
		{"a client's", ours, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }, "key usage"},
	} {
		c.by.Issue("engine", file("engine.pem"), file("engine.key"), c.change)
		if err := ask(serve(ours.Client())); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	ours.Issue("engine", file("engine.pem"), file("engine.key"))
	wants := serve(other.Client())
	if err := ask(wants); err == nil {
		t.Error("an engine takes a certificate that is not of its authority")
	}
	other.Issue("router", file("router.pem"), file("router.key"))
	if step = 2 * reload.LookEvery; ask(wants) != nil {
		t.Errorf("the certificate of now is not shown: %v", ask(wants))
	}
	// The authorities are those of the file as it is now, and with a damaged one those of before.
	text, err := os.ReadFile(other.File)
	if err != nil {
		t.Fatal(err)
	}
	mine := serve(other.Client())
	other.Issue("engine", file("engine.pem"), file("engine.key"))
	theirs := serve(other.Client())
	if err := ask(theirs); err == nil || ask(mine) != nil {
		t.Errorf("before the change another authority's engine is taken: %v, and ours is not: %v", err, ask(mine))
	}
	for _, content := range []string{string(text), "no certificate"} {
		securetest.Replace(t, ours.File, []byte(content))
		if err := ask(theirs); err != nil || ask(mine) == nil {
			t.Errorf("after the change to %.20q an engine of the new authority is refused: %v, or one of the old is not", content, err)
		}
	}
}
