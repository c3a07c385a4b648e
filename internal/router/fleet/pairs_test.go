package fleet

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route"
)

// fleetOf returns a fleet of one prefill worker, 1, and decode workers that take what is said of each.
func fleetOf(t *testing.T, log io.Writer, takes ...registry.KVTransfer) (*Fleet, *Model) {
	t.Helper()
	f := New(Config{Route: route.DefaultSettings(), PairLosses: 3, PairRest: time.Minute, Log: slog.New(slog.NewTextHandler(log, nil))})
	p := worker(1, "m", "")
	p.Role = registry.Prefill
	if err := f.SetWorker(p, false); err != nil {
		t.Fatal(err)
	}
	for i, by := range takes {
		d := worker(uint64(2+i), "m", "")
		d.Role, d.KVTransfer = registry.Decode, by
		if err := f.SetWorker(d, false); err != nil {
			t.Fatal(err)
		}
	}
	return f, f.Models()[0]
}

// chosen is the pair that a request gets; 0 for no prefill worker.
func chosen(t *testing.T, m *Model, excluded ...uint64) (prefill, decode uint64) {
	t.Helper()
	best, err := m.Router.BestPair(t.Context(), route.Prompt{Local: []uint64{1, 2}}, route.Options{Excluded: excluded})
	if err != nil {
		t.Fatal(err)
	}
	if best.Prefill != nil {
		prefill = best.Prefill.Worker
	}
	return prefill, best.Decode.Worker
}

// A pair is left out after so many losses in a row, for as long; then one more is enough, and a prompt that comes makes
// it as good as new. Who leaves or restarts begins anew.
func TestPairsAreLeftOutForLosses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, m := fleetOf(t, io.Discard, "")
		defer f.Close()
		paired := func(want bool) {
			t.Helper()
			f.Expire()
			if p, _ := chosen(t, m); (p == 1) != want {
				t.Errorf("paired: %v, want %v", p == 1, want)
			}
		}
		lose := func(n int) {
			for range n {
				f.HandedOver(m, 1, 2, false)
			}
		}
		lose(2)
		f.HandedOver(m, 1, 2, true)
		lose(2)
		paired(true)
		lose(1)
		paired(false)
		time.Sleep(59 * time.Second)
		paired(false)
		time.Sleep(2 * time.Second)
		paired(true)
		lose(1)
		paired(false)
		time.Sleep(time.Minute)
		f.HandedOver(m, 1, 2, true)
		lose(2)
		paired(true)
		lose(1)
		paired(false)
		d := worker(2, "m", "")
		d.Role, d.Incarnation = registry.Decode, 7
		if err := f.SetWorker(d, false); err != nil {
			t.Fatal(err)
		}
		paired(true)
		lose(3)
		f.RemoveWorker(d.Key())
		if why, all := m.AllApart(); len(why) != 0 || all != 0 {
			t.Errorf("%v of %d", why, all)
		}
		if err := f.SetWorker(d, false); err != nil {
			t.Fatal(err)
		}
		paired(true)
	})
}

// What becomes of prompts of workers that have left meanwhile is not kept: they may never come back.
func TestLossesOfWhoHasLeftAreNotKept(t *testing.T) {
	f, m := fleetOf(t, io.Discard, "")
	defer f.Close()
	f.RemoveWorker(registry.Key{Space: m.Space, Worker: 2})
	for id := range uint64(100) {
		f.HandedOver(m, 1, 2+id, false)
		f.HandedOver(m, 100+id, 1, false)
	}
	if n := len(m.pairs.lost); n != 0 {
		t.Errorf("%d pairs are kept", n)
	}
}

// An engine of a kind that does not know the way is paired with nobody, once it says what it is; and each thing is
// logged once.
func TestPairsOfOtherEngines(t *testing.T) {
	var log bytes.Buffer
	f, m := fleetOf(t, &log, "", registry.TransferVLLM, registry.TransferSGLang)
	owners := map[uint64]string{1: "vllm", 2: "sglang", 3: "vllm", 4: "sglang"}
	for id := range m.Engines() {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"data":[{"id":"m","owned_by":"`+owners[id]+`"}]}`)
		}))
		t.Cleanup(s.Close)
		e := worker(id, "m", "")
		e.Endpoints.HTTP = s.URL
		e.Role, e.KVTransfer = registry.Decode, m.Engine(id).Stated
		if id == 1 {
			e.Role = registry.Prefill
		}
		if err := f.SetWorker(e, false); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if n := f.AskModels(t.Context(), http.DefaultClient, time.Minute); n != 4 {
			t.Fatalf("%d answer", n)
		}
	}
	if why, all := m.AllApart(); all != 3 || why[ApartTransfer] != 1 || why[ApartEngine] != 1 || why[ApartLost] != 0 {
		t.Errorf("%v of %d", why, all)
	}
	if p, d := chosen(t, m); p != 1 || d != 3 {
		t.Errorf("%d and %d", p, d)
	}
	if p, _ := chosen(t, m, 3); p != 0 {
		t.Error("one that cannot is paired")
	}
	for _, reason := range []string{ApartTransfer, ApartEngine} {
		if n := strings.Count(log.String(), "reason="+reason); n != 1 {
			t.Errorf("%s is logged %d times: %s", reason, n, log.String())
		}
	}
	owners[1] = "acme" // not known: nothing is said against it
	owners[2] = ""
	f.AskModels(t.Context(), http.DefaultClient, time.Minute)
	if why, _ := m.AllApart(); why[ApartEngine] != 0 {
		t.Errorf("%v", why)
	}
}
