package main

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A program behind TLS is ready for whoever trusts its authority.
func TestReadyOverTLS(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }))
	defer s.Close()
	dir := t.TempDir()
	ca, other := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "other.pem")
	for path, text := range map[string][]byte{ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), other: []byte("no PEM")} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{[]string{"--ca=" + ca}, 0, "ready\n", ""},
		{[]string{"--ca", ca, "--json"}, 0, `"ready":true`, ""},
		{nil, 1, "", "certificate"},
		{[]string{"--ca=" + other}, 2, "", "has no certificate"},
		{[]string{"--ca=" + filepath.Join(dir, "none")}, 1, "", "no such file"},
	} {
		code, stdout, stderr := kvctl(t, append([]string{"ready", s.URL, "--wait=1m"}, c.args...)...)
		if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) {
			t.Errorf("%s: exit code %d, want %d: %s%s", c.args, code, c.code, stdout, stderr)
		}
	}
}
