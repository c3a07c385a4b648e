package query

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/shard"
)

// fakeRegistry is a Registry of fixed content that notes what it is asked.
type fakeRegistry struct {
	entries []registry.Entry
	asked   chan string
}

func (r *fakeRegistry) Snapshot(bool) []registry.Entry { return r.entries }
func (r *fakeRegistry) Name(k registry.Key) string {
	for _, e := range r.entries {
		if e.Key == k {
			return e.Name
		}
	}
	return ""
}
func (r *fakeRegistry) IsDrained(worker uint64) bool { return worker == 3 }
func (r *fakeRegistry) ServeRegister(_ context.Context, body []byte) (int, []byte) {
	r.asked <- "register " + string(body)
	return 201, []byte(`{"status":"ok"}`)
}

func (r *fakeRegistry) ServeUnregister(_ context.Context, body []byte) (int, []byte) {
	r.asked <- "unregister " + string(body)
	return 404, []byte(`{"error":"x"}`)
}

func (r *fakeRegistry) ServeDrain(_ context.Context, body []byte) (int, []byte) {
	r.asked <- "drain " + string(body)
	return 200, []byte(`{"status":"ok"}`)
}

func (r *fakeRegistry) ServeResume(_ context.Context, body []byte) (int, []byte) {
	r.asked <- "resume " + string(body)
	return 200, []byte(`{"status":"ok"}`)
}

func (r *fakeRegistry) ServeWorkers(model, group string) []byte {
	r.asked <- "workers " + model + " " + group
	return []byte("[]\n")
}

// serveRegistry is serve with a registry.
func serveRegistry(t *testing.T, ix Index, reg Registry) *served {
	t.Helper()
	d := Deps{Index: ix}
	if reg != nil {
		d.Registry = func() Registry { return reg }
	}
	return serveDeps(t, testConfig(t), d)
}

// Until the registry is read its routes say that, and the others answer without it.
func TestBeforeTheRegistryIsRead(t *testing.T) {
	var reg atomic.Pointer[fakeRegistry]
	s := serveDeps(t, testConfig(t), Deps{Index: twoSpaces(), Registry: func() Registry {
		if r := reg.Load(); r != nil {
			return r
		}
		return nil
	}})
	ask := func(want int) {
		t.Helper()
		for route, body := range map[string]string{"POST /register": "{}", "POST /unregister": "{}", "POST /drain": "{}", "POST /resume": "{}", "GET /workers": ""} {
			method, path, _ := strings.Cut(route, " ")
			if resp, text := s.do(t, method, path, body); (resp.StatusCode == 503) != (want == 503) || want == 503 && !strings.Contains(string(text), "not known yet") {
				t.Errorf("%s: %d %s", route, resp.StatusCode, text)
			}
		}
		if resp, text := s.do(t, "GET", "/v1/workers", ""); resp.StatusCode != 200 || strings.Contains(string(text), "gone") != (want == 200) {
			t.Errorf("%d %s", resp.StatusCode, text)
		}
	}
	ask(503)
	w := registry.Worker{ID: 9, Model: "gone", BlockSize: 4}
	reg.Store(&fakeRegistry{asked: make(chan string, 9), entries: []registry.Entry{{Worker: w, Key: w.Key()}}})
	ask(200)
}

func TestRegistrationRoutes(t *testing.T) {
	reg := &fakeRegistry{asked: make(chan string, 9)}
	with, without := serveRegistry(t, &fakeIndex{}, reg), serveRegistry(t, &fakeIndex{}, nil)
	for _, c := range []struct {
		method, path, body string
		status             int
		asked              string
	}{
		{"POST", "/register", `{"a":1}`, 201, `register {"a":1}`},
		{"POST", "/unregister", "{}", 404, "unregister {}"},
		{"POST", "/drain", "{}", 200, "drain {}"},
		{"POST", "/resume", "{}", 200, "resume {}"},
		{"GET", "/drain", "", 405, ""},
		{"GET", "/workers?model_name=m&routing_group=g", "", 200, "workers m g"},
		{"GET", "/workers", "", 200, "workers  "},
		{"GET", "/workers?model=m", "", 400, ""},
		{"GET", "/register", "", 405, ""},
		{"POST", "/workers", "", 405, ""},
		{"POST", "/register?x=1", "{}", 400, ""},
	} {
		got, body := with.do(t, c.method, c.path, c.body)
		asked := ""
		select {
		case asked = <-reg.asked:
		default:
		}
		if got.StatusCode != c.status || asked != c.asked || !json.Valid(body) {
			t.Errorf("%s %s: %d %s, asked %q; want %d, %q", c.method, c.path, got.StatusCode, body, asked, c.status, c.asked)
		}
		if got, _ := without.do(t, c.method, c.path, c.body); got.StatusCode != 404 {
			t.Errorf("%s %s without a registry: %d", c.method, c.path, got.StatusCode)
		}
	}
}

func TestWorkersShowTheirRegistration(t *testing.T) {
	ix := &fakeIndex{}
	sp := event.Space{Model: "m", BlockSize: 16, Group: "g"}
	ix.add(sp, fakeRank{RankID: shard.RankID{Worker: 1}, chain: []uint64{1, 2}},
		fakeRank{RankID: shard.RankID{Worker: 1, DPRank: 1}, chain: []uint64{1}},
		fakeRank{RankID: shard.RankID{Worker: 3}, chain: []uint64{1}, tiers: []event.Tier{event.Disk}})
	entry := func(id uint64, model string) registry.Entry {
		w := registry.Worker{ID: id, Model: model, BlockSize: 16, Group: "g", Ranks: []uint32{0}, Role: registry.Decode,
			Transport: registry.JetStream, TotalBlocks: 9, Incarnation: 1 << 60}
		return registry.Entry{Worker: w, Key: w.Key(), Announced: true, Lease: 15 * time.Second}
	}
	lost := entry(2, "m")
	lost.State, lost.LeftBy, lost.Left.At, lost.Announced = registry.Lost, registry.LeaseLost, time.Unix(0, 0).UTC(), false
	s := serveRegistry(t, ix, &fakeRegistry{entries: []registry.Entry{entry(5, "a"), entry(1, "m"), lost}})
	_, got := s.do(t, "GET", "/v1/workers?model=m", "")
	want := `{"spaces":[{"model":"m","group":"g","block_size":16,"workers":[` +
		`{"worker_id":"1","state":"live","drained":false,"blocks":3,"warnings":[{"check":"connector","level":"warning",` +
		`"found":"no prefill worker of its model is there: it computes prompts itself","do":"start prefill workers, or register it without --role"}],"ranks":[{"dp_rank":0,"device":2,"host_pinned":0,"disk":0,"external":0},{"dp_rank":1,"device":1,"host_pinned":0,"disk":0,"external":0}],` +
		`"registration":{"sources":["announced"],"role":"decode","transport":"jetstream","dp_ranks":[0],"total_blocks":9,"incarnation":"1152921504606846976","lease_seconds":15}},` +
		`{"worker_id":"2","state":"lost","drained":false,"blocks":0,"ranks":[],` +
		`"registration":{"sources":[],"role":"decode","transport":"jetstream","dp_ranks":[0],"total_blocks":9,"incarnation":"1152921504606846976","lease_seconds":15,"left_at":"1970-01-01T00:00:00Z","left_by":"lease_lost"}},` +
		`{"worker_id":"3","state":"unregistered","drained":true,"blocks":1,"ranks":[{"dp_rank":0,"device":0,"host_pinned":0,"disk":1,"external":0}]}]}]}` + "\n"
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if _, all := s.do(t, "GET", "/v1/workers", ""); !bytes.Contains(all, []byte(`"model":"a"`)) {
		t.Errorf("%s", all)
	}
}
