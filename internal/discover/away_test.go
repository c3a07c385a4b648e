package discover

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/internal/discover/kube"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/testing/kubetest"
)

// The API server is away for an hour, by a clock of the test's own, in which pods go and come and
// the versions become too old: nothing departs meanwhile, it is tried each minute and not much more
// often, and a minute after it is back all is as it is there.
func TestAnHourWithoutTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, label := kubetest.New(), map[string]string{"a": "b"}
		notes := map[string]string{"kvatlas/model": "m", "kvatlas/block-size": "16", "kvatlas/events-port": "none"}
		for _, name := range []string{"one", "two", "three"} {
			api.Store("pods", kubetest.Pod(name, "u-"+name, "10.0.0.1", label, notes))
		}
		cfg := Config{Kube: kube.Config{URL: "http://api", Transport: api}, Namespace: "n", Selector: "a=b", Name: "x", MaxPods: 100, Watch: 5 * time.Minute,
			HTTPPort: 8000, Every: 15 * time.Second, Retry: time.Second, Timeout: 5 * time.Second, Concurrency: 8}
		d, err := newDiscovery(&cfg, obs.NewMetrics(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); d.run(ctx) }()
		defer func() { cancel(); <-done; d.kube.Close() }()
		are := func(want string) {
			t.Helper()
			names := make(chan []string, 1)
			if err := d.tell(ctx, func() {
				var list []string
				for p := range maps.Keys(d.fleet.Wanted()) {
					list = append(list, strings.TrimPrefix(p.Name, d.fleet.Prefix))
				}
				names <- list
			}); err != nil {
				t.Fatal(err)
			}
			list := <-names
			if slices.Sort(list); strings.Join(list, " ") != want {
				t.Errorf("%q are wanted, not %s", list, want)
			}
			synctest.Wait()
		}
		tries := func() int { return api.Asked("list pods") + api.Asked("watch pods") }
		synctest.Wait()
		are("one three two")
		if s := d.shown.Load(); s.kube != "" || !s.synced {
			t.Errorf("%+v", s)
		}

		before := tries()
		api.Away(true)
		api.Delete("pods", "one")
		api.Store("pods", kubetest.Pod("four", "u-4", "10.0.0.4", label, notes))
		api.Forget()
		for range 60 {
			time.Sleep(time.Minute)
			are("one three two")
			if s := d.shown.Load(); s.kube == "" || !s.synced {
				t.Fatalf("%+v", s)
			}
		}
		if n := tries() - before; n < 60 || n > 140 {
			t.Errorf("the API server was asked %d times in the hour", n)
		}
		api.Away(false)
		time.Sleep(time.Minute)
		are("four three two")
		if s := d.shown.Load(); s.kube != "" {
			t.Errorf("it still says %s", s.kube)
		}
	})
}
