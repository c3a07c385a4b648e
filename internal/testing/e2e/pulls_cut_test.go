package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// cutFleet is a fleet of engines that fetch prefixes from each other, over links that are slow, behind two routers.
type cutFleet struct {
	t    *testing.T
	rnd  *rand.Rand
	urls map[string]string // of routers
}

func (f *cutFleet) prompt(tokens int) string {
	list := make([]uint32, tokens)
	for i := range list {
		list[i] = f.rnd.Uint32N(100_000)
	}
	body, err := json.Marshal(map[string]any{"model": "m", "prompt": list, "max_tokens": 1})
	if err != nil {
		f.t.Fatal(err)
	}
	return string(body)
}

// said is what came of a request: no status, if no answer did.
type said struct {
	status  int
	cached  int
	receipt string
}

// say sends a prompt to a worker by a router.
func (f *cutFleet) say(router, body, worker string) (s said) {
	client := http.Client{Timeout: waittest.Patience}
	req, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, f.urls[router]+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return s
	}
	req.Header.Set("X-Kvatlas-Worker", worker)
	resp, err := client.Do(req)
	if err != nil {
		if os.IsTimeout(err) {
			f.t.Errorf("a request hangs: %v", err)
		}
		return s
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	var answer struct {
		Usage struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	_ = json.NewDecoder(resp.Body).Decode(&answer) // of an answer that is none the status tells
	return said{resp.StatusCode, answer.Usage.Details.Cached, resp.Header.Get("X-Kvatlas-Receipt")}
}

func (f *cutFleet) number(router, name string, label ...string) float64 {
	f.t.Helper()
	text, err := get(f.t.Context(), f.urls[router]+"/metrics")
	if err != nil {
		f.t.Fatal(err)
	}
	return sum(text, name, label...)
}

func (f *cutFleet) until(router, name string, enough func(float64) bool) {
	f.t.Helper()
	eventually(f.t, waittest.Patience, func() error {
		if n := f.number(router, name); !enough(n) {
			return fmt.Errorf("%s of router %s is %v", name, router, n)
		}
		return nil
	})
}

// has lets a worker compute a prompt, and returns it when the routers know that.
func (f *cutFleet) has(worker string, tokens int, routers ...string) string {
	f.t.Helper()
	body, before := f.prompt(tokens), map[string]float64{}
	stored := func(router string) float64 { return f.number(router, "kvatlas_ingest_blocks_total", `result="stored"`) }
	for _, r := range routers {
		before[r] = stored(r)
	}
	if s := f.say(routers[0], body, worker); s.status != http.StatusOK || s.cached != 0 {
		f.t.Fatalf("worker %s: %+v of what nobody has said", worker, s)
	}
	for _, r := range routers {
		f.until(r, "kvatlas_ingest_blocks_total", func(float64) bool { return stored(r) >= before[r]+float64(tokens/16) })
	}
	return body
}

// fetches has a worker fetch a prompt by a router, and returns when that has booked it.
func (f *cutFleet) fetches(router, body, worker string) <-chan said {
	f.t.Helper()
	ends := make(chan said, 1)
	go func() { ends <- f.say(router, body, worker) }()
	f.until(router, "kvatlas_router_live_bookings", func(n float64) bool { return n > 0 })
	return ends
}

// TestFetchesThatAreCutOff: a router, an engine that gives a prefix and one that fetches it are killed amid that. No
// request hangs, no booking stays, and the links of who is left are as free as before: auto has them fetch again.
func TestFetchesThatAreCutOff(t *testing.T) {
	t.Parallel()
	home, second := t.TempDir(), t.TempDir()
	startIndexer(t, home)
	f := &cutFleet{t: t, rnd: rand.New(rand.NewPCG(20, 6)), urls: map[string]string{}}
	flags := []string{"--queue=0", "--trust=127.0.0.1"}
	first, url := startRouter(t, home, flags...)
	f.urls["a"] = url
	_, f.urls["b"] = startRouter(t, second, append(flags, "--data-dir="+filepath.Join(home, "data"))...)
	engines := map[string]*process{}
	for _, worker := range []string{"1", "2", "3", "4", "5"} {
		engines[worker] = start(t, home, "kvmocker", "--data-dir="+home+"/data", "--workers=1", "--http", "--http-port=0", "--model=m", "--peers", "--peer-link=2ms", "--first-worker="+worker)
	}
	for worker := range engines {
		for router := range f.urls {
			eventually(t, waittest.Patience, func() error {
				if s := f.say(router, `{"model":"m","prompt":[1],"max_tokens":1}`, worker); s.status != http.StatusOK {
					return fmt.Errorf("worker %s by router %s: %+v", worker, router, s)
				}
				return nil
			})
		}
	}
	const long, short = 2005, 165 // 4 s, and a third of one, over a link
	free := func(worker, source string) {
		t.Helper()
		for router := range f.urls {
			f.until(router, "kvatlas_router_live_bookings", func(n float64) bool { return n == 0 })
		}
		eventually(t, waittest.Patience, func() error {
			s := f.say("b", f.has(source, short, "b"), worker)
			if s.status != http.StatusOK || s.cached != short/16*16 || !strings.Contains(s.receipt, `pull-from="`+source+`"`) {
				return fmt.Errorf("worker %s does not fetch from %s any more: %+v", worker, source, s)
			}
			return nil
		})
	}

	// The router is killed, and the other one knows of its booking and its fetch.
	ends := f.fetches("a", f.has("1", long, "a", "b"), "2")
	began := time.Now()
	first.kill()
	if s := <-ends; s.status == http.StatusOK {
		t.Errorf("of a router that was killed came %+v", s)
	}
	delete(f.urls, "a")
	free("3", "1")
	t.Logf("free %v after the router was killed", time.Since(began).Round(time.Millisecond))

	// The engine that gives it is killed: it is computed.
	missed := f.number("b", "kvatlas_router_pulls_missed_total")
	ends = f.fetches("b", f.has("1", long, "b"), "3")
	engines["1"].kill()
	if s := <-ends; s.status != http.StatusOK || s.cached != 0 || !strings.Contains(s.receipt, `pull-from="1"`) {
		t.Errorf("its source was killed: %+v", s)
	}
	if n := f.number("b", "kvatlas_router_pulls_missed_total"); n != missed+1 {
		t.Errorf("%v fetches are missed, before it was %v", n, missed)
	}
	free("3", "4")

	// The engine that fetches is killed: the request ends, or is answered elsewhere.
	ends = f.fetches("b", f.has("4", long, "b"), "2")
	engines["2"].kill()
	s := <-ends
	t.Logf("the engine that fetches was killed: %+v", s)
	if s.status == 0 {
		t.Error("the router has not answered")
	}
	free("5", "4")
}
