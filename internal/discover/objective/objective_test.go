package objective

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/discover/kube"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/testing/kubetest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

const kind = "inferenceobjectives"

// objective is one with the spec, as an API server has it.
func objective(name string, spec map[string]any) kubetest.Object {
	return kubetest.Object{"metadata": map[string]any{"name": name}, "spec": spec}
}

func of(pool string) map[string]any { return map[string]any{"name": pool} }

// The list is what the API server has for the pool, through changes, cuts and versions that are
// too old; while it is away, what was known holds.
func TestTheListIsThePools(t *testing.T) {
	api := kubetest.New()
	server := httptest.NewServer(api)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	api.Store(kind, objective("chat", map[string]any{"priority": 10, "poolRef": map[string]any{"name": "p", "group": group, "kind": "InferencePool"}}))
	api.Store(kind, objective("batch", map[string]any{"priority": -1, "poolRef": of("p")}))
	api.Store(kind, objective("plain", map[string]any{"poolRef": of("p")}))
	api.Store(kind, objective("most", map[string]any{"priority": int64(1) << 40, "poolRef": of("p")}))
	api.Store(kind, objective("another's", map[string]any{"priority": 7, "poolRef": of("q")}))
	api.Store(kind, objective("other group", map[string]any{"priority": 7, "poolRef": map[string]any{"name": "p", "group": "x"}}))
	api.Store(kind, objective("odd", map[string]any{"priority": "high", "poolRef": of("p")}))
	m := obs.NewMetrics()
	b, err := Open(Settings{Pool: "p", Namespace: "n", Kube: kube.Config{URL: server.URL}}, m, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	b.wait = time.Millisecond
	if _, known := b.Priority("chat"); known || b.Why() == "" {
		t.Error("it knows something before it was told")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); b.Follow(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	are := func(want map[string]int) {
		t.Helper()
		waittest.Until(t, func() error {
			if list := b.list.Load(); list == nil || !maps.Equal(*list, want) {
				return fmt.Errorf("%v, want %v: %s", list, want, b.Why())
			}
			return nil
		})
	}
	are(map[string]int{"chat": 10, "batch": -1, "plain": 0, "most": math.MaxInt32})
	if p, known := b.Priority("batch"); p != -1 || !known || b.unread.Get() != 1 || b.Why() != "" {
		t.Error(p, known, b.unread.Get(), b.Why())
	}

	api.Store(kind, objective("batch", map[string]any{"priority": 3, "poolRef": of("p")}))
	api.Store(kind, objective("chat", map[string]any{"priority": 10, "poolRef": of("q")}))
	api.Delete(kind, "plain")
	are(map[string]int{"batch": 3, "most": math.MaxInt32})

	api.Away(true)
	waittest.Until(t, func() error {
		if b.Why() == "" {
			return fmt.Errorf("it does not say that the API server is away")
		}
		return nil
	})
	api.Delete(kind, "most")
	are(map[string]int{"batch": 3, "most": math.MaxInt32})
	api.Forget()
	api.Away(false)
	are(map[string]int{"batch": 3})
	waittest.Until(t, func() error {
		if why := b.Why(); why != "" {
			return fmt.Errorf("it still says %s", why)
		}
		return nil
	})
}

// What cannot be read is as it was; of what has no name, all may be.
func TestObjectivesThatCannotBeRead(t *testing.T) {
	b, err := Open(Settings{Pool: "p", Namespace: "n", Kube: kube.Config{URL: "http://api"}}, obs.NewMetrics(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	good := func(name, priority string) json.RawMessage {
		return json.RawMessage(`{"metadata":{"name":"` + name + `"},"spec":{"priority":` + priority + `,"poolRef":{"name":"p"}}}`)
	}
	nameless := json.RawMessage(`{"metadata":7}`)
	for i, step := range []struct {
		kind    kube.Kind
		objects []json.RawMessage
		want    map[string]int
		unread  uint64 // so far
	}{
		{kube.Replaced, []json.RawMessage{good("a", "1"), good("b", "2"), good("c", `"high"`)}, map[string]int{"a": 1, "b": 2}, 1},
		{kube.Stored, []json.RawMessage{good("a", `"high"`)}, map[string]int{"a": 1, "b": 2}, 2},
		{kube.Replaced, []json.RawMessage{good("a", `"high"`), good("d", "4")}, map[string]int{"a": 1, "d": 4}, 3},
		{kube.Replaced, []json.RawMessage{good("e", "5"), nameless}, map[string]int{"a": 1, "d": 4, "e": 5}, 4},
		{kube.Deleted, []json.RawMessage{good("a", `"high"`)}, map[string]int{"d": 4, "e": 5}, 4},
		{kube.Replaced, []json.RawMessage{json.RawMessage(`{"metadata":{"name":"e"},"spec":{"poolRef":{"name":"q"}}}`), nameless}, map[string]int{"d": 4}, 5},
		{kube.Replaced, []json.RawMessage{good("d", "6")}, map[string]int{"d": 6}, 5},
	} {
		if b.apply(kube.Change{Kind: step.kind, Objects: step.objects}); !maps.Equal(*b.list.Load(), step.want) || b.unread.Get() != step.unread {
			t.Errorf("step %d: %v, %d could not be read; want %v, %d", i, *b.list.Load(), b.unread.Get(), step.want, step.unread)
		}
	}
}

// Settings that cannot be are told at the start.
func TestWrongSettings(t *testing.T) {
	for _, s := range []Settings{{Pool: "p"}, {Pool: "../p", Namespace: "n"}, {Pool: "p", Namespace: "N"}, {Pool: "p", Namespace: "n"}} {
		if _, err := Open(s, obs.NewMetrics(), slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%+v is taken", s)
		} else if s.Namespace == "" && !strings.Contains(err.Error(), "--kube-namespace") {
			t.Error(err)
		}
	}
}

// No object of a server makes it panic, or leaves a priority that is out of bounds.
func FuzzObjective(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"a"},"spec":{"priority":1,"poolRef":{"name":"p"}}}`))
	f.Add([]byte(`{"metadata":null,"spec":{"poolRef":[]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		name, priority, _, err := parse(text, "p")
		if err == nil && name == "" || priority < math.MinInt32 || priority > math.MaxInt32 {
			t.Error(name, priority, err)
		}
	})
}
