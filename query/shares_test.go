package query

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/shares"
	"github.com/kvatlas/kvatlas/registry"
)

// sharesBench is a server that asks two shares: the first is a server with a share, the
// other one what a test says.
type sharesBench struct {
	*served
	second atomic.Pointer[http.HandlerFunc]
	other  *httptest.Server
}

// A worker of the second share, and one of the first.
func workerOf(share stream.Share) uint64 {
	for w := uint64(1); ; w++ {
		if share.Has(w) {
			return w
		}
	}
}

func newSharesBench(t *testing.T, wait time.Duration) *sharesBench {
	t.Helper()
	sp := event.Space{Model: "m", BlockSize: 4}
	first := &fakeIndex{}
	first.add(sp, fakeRank{RankID: rank(workerOf(stream.Share{Of: 2}), 0), chain: []uint64{1, 2, 3}})
	one := serveDeps(t, testConfig(t), Deps{Index: first, Share: stream.Share{Of: 2}, Behind: func() string { return "" }})
	b := &sharesBench{}
	b.other = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*b.second.Load())(w, r) }))
	t.Cleanup(b.other.Close)
	reg := &fakeRegistry{}
	for _, share := range []stream.Share{{Index: 0, Of: 2}, {Index: 1, Of: 2}} {
		reg.entries = append(reg.entries, registry.Entry{Worker: registry.Worker{Model: "m"}, Key: registry.Key{Space: sp, Worker: workerOf(share)}})
	}
	both, err := shares.New(shares.Config{URLs: []string{one.url, b.other.URL}, Wait: wait}, obs.NewMetrics(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(both.Close)
	b.served = serveDeps(t, testConfig(t), Deps{Index: &fakeIndex{}, Registry: func() Registry { return reg }, Shares: both})
	return b
}

// ask returns the workers that are listed and those that are said to be unknown.
func (b *sharesBench) ask(t *testing.T) (listed, unknown []string) {
	t.Helper()
	got, data := b.do(t, "POST", "/v1/find_matches", `{"model":"m","hashes":[1,2,3]}`)
	var a struct {
		matchesJSON
		Missing struct{ Workers []string }
	}
	if err := json.Unmarshal(data, &a); err != nil || got.StatusCode != 200 {
		t.Fatalf("status %d: %s (%v)", got.StatusCode, data, err)
	}
	for _, sp := range a.Spaces {
		for _, w := range sp.Workers {
			listed = append(listed, w.ID)
		}
	}
	return listed, a.Missing.Workers
}

// Whatever is not the answer of the very share that was asked leaves its workers unknown,
// and the others' answer as it is.
func TestAShareThatDoesNotAnswerAsOne(t *testing.T) {
	b := newSharesBench(t, time.Second)
	one, two := fmt.Sprint(workerOf(stream.Share{Index: 0, Of: 2})), fmt.Sprint(workerOf(stream.Share{Index: 1, Of: 2}))
	answer := `{"model":"m","spaces":[{"group":"","block_size":4,"blocks":3,"workers":[{"worker_id":"` + two + `","device":3,"host_pinned":3,"disk":3,"external":3,"longest":3,"tokens":12,"ranks":[{"dp_rank":0,"device":3,"host_pinned":3,"disk":3,"external":3}]}]}]}`
	says := func(share string, status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if share != "" {
				w.Header().Set("Kvatlas-Share", share)
			}
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}
	}
	for name, c := range map[string]struct {
		second  http.HandlerFunc
		unknown bool
	}{
		"its answer":           {says("1/2", 200, answer), false},
		"nobody published":     {says("1/2", 404, `{"error":{"reason":"unknown_model"}}`), false},
		"all of the fleet":     {says("", 200, answer), true},
		"the first share":      {says("0/2", 200, answer), true},
		"no such block size":   {says("1/2", 400, `{"error":{"reason":"block_size_mismatch"}}`), false},
		"of three":             {says("1/3", 200, answer), true},
		"of three, unknown":    {says("1/3", 404, `{"error":{"reason":"unknown_model"}}`), true},
		"another server's 404": {says("", 404, `not found`), true},
		"no JSON":              {says("1/2", 200, "<html>"), true},
		"null":                 {says("1/2", 200, "null"), true},
		"no spaces":            {says("1/2", 200, "{}"), true},
		"too many connections": {says("1/2", 429, `{"error":{}}`), true},
		"refuses alone":        {says("1/2", 400, `{"error":{}}`), true},
		"a token it lacks":     {says("", 401, `{"error":{}}`), true},
		"a redirect":           {says("", 302, ""), true},
		"drips": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Kvatlas-Share", "1/2")
			for { // and who waits for its end waits for ever
				_, _ = w.Write([]byte(" "))
				_ = http.NewResponseController(w).Flush()
				select {
				case <-time.After(100 * time.Millisecond):
				case <-r.Context().Done():
					return
				}
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b.second.Store(&c.second)
			listed, unknown := b.ask(t)
			if !slices.Contains(listed, one) || c.unknown != slices.Equal(unknown, []string{two}) || c.unknown && len(listed) > 1 {
				t.Errorf("listed %v, unknown %v", listed, unknown)
			}
		})
	}
	bad := says("1/2", 400, `{"error":{"field":"hashes","reason":"wrong_type","message":"no"}}`)
	b.second.Store(&bad)
	if got, data := b.do(t, "POST", "/v1/find_matches", `{"model":"m","hashes":["x"]}`); got.StatusCode != 400 || !strings.Contains(string(data), `"hashes`) {
		t.Errorf("what all refuse: status %d, %s", got.StatusCode, data)
	}
	for model, want := range map[string]string{"": two, "m": two, "other": ""} {
		_, data := b.do(t, "GET", "/v1/workers?model="+model, "")
		var a struct{ Missing struct{ Workers []string } }
		if err := json.Unmarshal(data, &a); err != nil || strings.Join(a.Missing.Workers, ",") != want {
			t.Errorf("workers of model %q: unknown %v, want %q (%v)", model, a.Missing.Workers, want, err)
		}
	}
	if got, _ := b.do(t, "HEAD", "/v1/workers", ""); got.StatusCode != 200 && got.StatusCode != 503 {
		t.Errorf("HEAD: %d", got.StatusCode)
	}
}

// A share that is started again has closed its connections: what is sent into one of them is
// asked once more, within the time that there is.
func TestAShareThatIsStartedAgainIsAsked(t *testing.T) {
	b := newSharesBench(t, 5*time.Second)
	answers := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Kvatlas-Share", "1/2")
		_, _ = w.Write([]byte(`{"model":"m","spaces":[]}`))
	})
	b.second.Store(&answers)
	var asking sync.WaitGroup
	for range 8 {
		asking.Go(func() { b.ask(t) })
	}
	asking.Wait()
	dies := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		b.second.Store(&answers)
		conn, _, err := w.(http.Hijacker).Hijack() //nolint:forcetypeassert // HTTP/1
		if err == nil {
			_ = conn.Close()
		}
	})
	b.second.Store(&dies)
	if _, unknown := b.ask(t); len(unknown) > 0 {
		t.Errorf("unknown: %v", unknown)
	}
}

// What the console is told of a prompt is the union too, without hashes, and of a tenant's
// group alone, whatever the question says.
func TestExplainOverShares(t *testing.T) {
	b := newSharesBench(t, time.Second)
	second := workerOf(stream.Share{Index: 1, Of: 2})
	var asked atomic.Pointer[[]byte]
	ok := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked.Store(&body)
		w.Header().Set(shares.Header, "1/2")
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"model":"m","asked":{"by":"hashes","elements":3,"seed":"4711"},"spaces":[{"group":"","block_size":4,"blocks":3,"longest":1,"ranks":[
			{"worker_id":"%d","dp_rank":0,"device":1,"external":1,"reason":"others_hold_the_next_block","detail":"","first_missing":{"block":1,"local_hash":"4712","sequence_hash":"4713","held_by_ranks":1}}]}],
			"other_spaces":[{"group":"theirs","block_size":4,"why":"theirs"},{"group":"acme","block_size":8,"why":"ours"}]}`, second)
	})
	b.second.Store(&ok)
	const question = `{"model":"m","hashes":[1,2,3]}`
	answer, no := b.Explain(nil, []byte(question))
	var got explanation
	if err := json.Unmarshal(answer, &got); no != nil || err != nil {
		t.Fatalf("%v %v %s", no, err, answer)
	}
	if len(got.Spaces) != 1 || len(got.Spaces[0].Ranks) != 2 || got.Spaces[0].Longest != 3 || len(got.Others) != 2 || got.Asked.Elements != 3 {
		t.Errorf("%s", answer)
	}
	if strings.Contains(string(answer), "471") {
		t.Errorf("hashes are told: %s", answer)
	}
	acme := "acme"
	answer, no = b.Explain(&acme, []byte(question))
	if no != nil || strings.Contains(string(answer), "theirs") || !strings.Contains(string(answer), "ours") || !strings.Contains(string(*asked.Load()), `"group":"acme"`) {
		t.Errorf("%v %s; asked is %s", no, answer, *asked.Load())
	}
	if _, no = b.Explain(&acme, []byte(`{"model":"m","group":"theirs","hashes":[1]}`)); no == nil || no.Reason != edge.UnknownGroup {
		t.Errorf("another's group: %+v", no)
	}
	away := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	b.second.Store(&away)
	if answer, no = b.Explain(nil, []byte(question)); no != nil || !strings.Contains(string(answer), fmt.Sprintf(`"workers":["%d"]`, second)) {
		t.Errorf("%+v %s", no, answer)
	}
	if _, no = b.Explain(nil, []byte(`{"model":"none","hashes":[1]}`)); no == nil || no.Status != http.StatusServiceUnavailable {
		t.Errorf("nobody knows whether there is such a model: %+v", no)
	}
	b.second.Store(&ok)
	if _, no = b.Explain(nil, []byte(`{"model":"m"}`)); no == nil || no.Status != http.StatusBadRequest {
		t.Errorf("no prompt: %+v", no)
	}
}
