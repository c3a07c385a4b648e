package secure

import (
	"fmt"
	"log/slog"
	"net/http"
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
