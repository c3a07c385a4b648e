package query

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/testing/apitest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/shard"
)

// served is a Server on a free port of loopback.
type served struct {
	*Server
	url     string
	addr    string
	metrics *obs.Metrics
	log     *waittest.Log
	client  *http.Client

	checked sync.Map // exchanges compared with the document: kind -> *atomic.Int64
}

// sampled reports whether an exchange of the kind is to be compared with the
// document: many of one kind say no more than some.
func (s *served) sampled(kind string) bool {
	n, _ := s.checked.LoadOrStore(kind, new(atomic.Int64))
	return n.(*atomic.Int64).Add(1) <= 5 //nolint:forcetypeassert // it holds nothing else
}

// testConfig returns the defaults, changed by flags.
func testConfig(t testing.TB, flags ...string) Config {
	t.Helper()
	var c Config
	set := conf.New("test", "A test.")
	c.Declare(set)
	if _, err := set.Run(append([]string{"--http-listen=127.0.0.1:0"}, flags...), nil, io.Discard); err != nil {
		t.Fatal(err)
	}
	return c
}

func serve(t testing.TB, ix Index, cfg Config, checks ...edge.Check) *served {
	t.Helper()
	return serveDeps(t, cfg, Deps{Index: ix, Checks: checks})
}

func serveDeps(t testing.TB, cfg Config, d Deps) *served {
	t.Helper()
	log, m := new(waittest.Log), obs.NewMetrics()
	d.Log, d.Metrics = slog.New(slog.NewTextHandler(log, nil)), m
	s, err := New(cfg, d)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := s.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	client := &http.Client{Transport: &http.Transport{}, Timeout: time.Minute}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) //nolint:usetesting // t's context has ended
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return &served{Server: s, url: "http://" + ln.Addr().String(), addr: ln.Addr().String(), metrics: m, log: log, client: client}
}

// answer is the head of an answer whose body has been read.
type answer struct {
	StatusCode int
	Status     string
	Header     http.Header
	Close      bool // the server closes the connection
}

// do sends a request and returns its answer.
func (s *served) do(t testing.TB, method, path, body string, headers ...string) (answer, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if req.Header.Get("Content-Encoding") == "" && resp.Header.Get("Content-Encoding") == "" && (resp.StatusCode != 200 || s.sampled(method+path)) {
		checkExchange(t, apitest.Exchange{
			Method: method, Path: req.URL.EscapedPath(), RequestType: req.Header.Get("Content-Type"), Request: []byte(body),
			Status: resp.StatusCode, AnswerType: resp.Header.Get("Content-Type"), Answer: data,
		})
	}
	return answer{resp.StatusCode, resp.Status, resp.Header, resp.Close}, data
}

// counter returns a metric's value; 0 if it is absent.
func (s *served) counter(name string) string {
	var b bytes.Buffer
	s.metrics.WritePrometheus(&b)
	for line := range strings.SplitSeq(b.String(), "\n") {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			return v
		}
	}
	return "0"
}

// The answers, as clients see them.
type (
	matchesJSON struct {
		Model  string
		Spaces []struct {
			Group   string
			Size    int `json:"block_size"`
			Blocks  int
			Workers []struct {
				ID string `json:"worker_id"`
				depthsJSON
				Longest, Tokens int
				Ranks           []struct {
					DPRank int `json:"dp_rank"`
					depthsJSON
				}
			}
		}
	}
	depthsJSON struct {
		Device     int
		HostPinned int `json:"host_pinned"`
		Disk       int
		External   int
	}
	problemJSON struct {
		Error struct{ Field, Reason, Message string }
	}
)

func rank(worker uint64, dp uint32) shard.RankID { return shard.RankID{Worker: worker, DPRank: dp} }

// twoSpaces is an index of model m in groups "" and g, and of model n.
func twoSpaces() *fakeIndex {
	ix := new(fakeIndex)
	const huge = 1<<64 - 1
	ix.add(event.Space{Model: "m", BlockSize: 2},
		fakeRank{rank(7, 0), []uint64{1, 2, huge}, []event.Tier{0, 0, event.Disk}},
		fakeRank{rank(7, 1), []uint64{1, 2, 3}, []event.Tier{0, event.HostPinned}},
		fakeRank{rank(huge, 0), []uint64{1}, []event.Tier{event.External}},
		fakeRank{rank(8, 0), []uint64{5}, nil})
	ix.add(event.Space{Model: "m", BlockSize: 4, Group: "g"}, fakeRank{rank(7, 0), []uint64{1, 2}, nil})
	ix.add(event.Space{Model: `n"é`, BlockSize: 2}, fakeRank{rank(1, 0), []uint64{9}, nil})
	return ix
}

func TestFindListsEveryHolderWithItsDepths(t *testing.T) {
	s := serve(t, twoSpaces(), testConfig(t))
	resp, body := s.do(t, "POST", "/v1/find_matches", `{"model":"m","hashes":[1,"2",18446744073709551615,4]}`)
	const want = `{"model":"m","spaces":[` +
		`{"group":"","block_size":2,"blocks":4,"workers":[` +
		`{"worker_id":"7","device":2,"host_pinned":2,"disk":3,"external":3,"longest":3,"tokens":6,"ranks":[` +
		`{"dp_rank":0,"device":2,"host_pinned":2,"disk":3,"external":3},` +
		`{"dp_rank":1,"device":1,"host_pinned":2,"disk":2,"external":2}]},` +
		`{"worker_id":"18446744073709551615","device":0,"host_pinned":0,"disk":0,"external":1,"longest":1,"tokens":2,"ranks":[` +
		`{"dp_rank":0,"device":0,"host_pinned":0,"disk":0,"external":1}]}]},` +
		`{"group":"g","block_size":4,"blocks":4,"workers":[` +
		`{"worker_id":"7","device":2,"host_pinned":2,"disk":2,"external":2,"longest":2,"tokens":8,"ranks":[` +
		`{"dp_rank":0,"device":2,"host_pinned":2,"disk":2,"external":2}]}]}]}` + "\n"
	if resp.StatusCode != 200 || string(body) != want || resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%s %s\n%s\nwant\n%s", resp.Status, resp.Header, body, want)
	}
	if s.counter("kvatlas_find_blocks_total") != "8" || s.counter("kvatlas_find_ranks_total") != "4" ||
		s.counter(`kvatlas_http_requests_total{route="find_matches",code="200"}`) != "1" {
		t.Error("the request is not counted")
	}
}

func TestFindNarrowsByGroupBlockSizeAndBlocks(t *testing.T) {
	s := serve(t, twoSpaces(), testConfig(t))
	for body, want := range map[string]string{
		`{"model":"m","hashes":[1,2],"group":"g"}`:                    "g/4/2:7=2",
		`{"model":"m","hashes":[1,2],"group":""}`:                     "/2/2:7=2,18446744073709551615=1",
		`{"model":"m","hashes":[1,2],"block_size":4}`:                 "g/4/2:7=2",
		`{"model":"m","hashes":[1,2],"block_size":2}`:                 "/2/2:7=2,18446744073709551615=1",
		`{"model":"m","hashes":[1,2],"block_size":2,"max_blocks":1}`:  "/2/1:7=1,18446744073709551615=1",
		`{"model":"m","hashes":[1,2],"block_size":2,"max_blocks":99}`: "/2/2:7=2,18446744073709551615=1",
		`{"model":"m","hashes":[],"block_size":2}`:                    "/2/0:",
		`{"model":"m","token_ids":[1],"block_size":2}`:                "/2/0:",
		`{"model":"m","hashes":[3],"block_size":2}`:                   "/2/1:",
		`{"model":"n\"\u00e9","hashes":[9]}`:                          "/2/1:1=1",
	} {
		resp, data := s.do(t, "POST", "/v1/find_matches", body)
		var m matchesJSON
		if err := json.Unmarshal(data, &m); err != nil || resp.StatusCode != 200 {
			t.Fatalf("%s: %v in %s", body, err, data)
		}
		var got []string
		for _, sp := range m.Spaces {
			var workers []string
			for _, w := range sp.Workers {
				workers = append(workers, fmt.Sprintf("%s=%d", w.ID, w.Longest))
			}
			got = append(got, fmt.Sprintf("%s/%d/%d:%s", sp.Group, sp.Size, sp.Blocks, strings.Join(workers, ",")))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %q, want %q", body, got, want)
		}
	}
}

func TestFindByTokensIsFindByTheirHashes(t *testing.T) {
	tokens := []uint32{10, 11, 12, 13, 14, 15, 4294967295, 17, 18}
	for _, name := range []struct{ lora, salt string }{{"", ""}, {"adapter", ""}, {"", "tenant"}, {"adapter", "tenant"}} {
		ix := new(fakeIndex)
		for _, size := range []int{2, 3} {
			local, err := blockhash.LocalHashes(nil, tokens, size, blockhash.Options{Seed: blockhash.Seed(name.lora, name.salt)})
			if err != nil {
				t.Fatal(err)
			}
			for _, group := range []string{"", "g"} {
				ix.add(event.Space{Model: "m", BlockSize: uint32(size), Group: group}, fakeRank{rank(1, 0), local, nil})
			}
		}
		s := serve(t, ix, testConfig(t))
		list, err := json.Marshal(tokens)
		if err != nil {
			t.Fatal(err)
		}
		_, data := s.do(t, "POST", "/v1/find_matches", fmt.Sprintf(
			`{"model":"m","token_ids":%s,"lora_name":%q,"cache_salt":%q}`, list, name.lora, name.salt))
		var m matchesJSON
		if err := json.Unmarshal(data, &m); err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, sp := range m.Spaces {
			for _, w := range sp.Workers {
				got = append(got, w.Longest, w.Tokens)
			}
		}
		if want := []int{4, 8, 4, 8, 3, 9, 3, 9}; !reflect.DeepEqual(got, want) {
			t.Errorf("%v: longest and tokens %v, want %v; %s", name, got, want, data)
		}
	}
}

func TestAMillionTokensFitAsTheHelpSays(t *testing.T) {
	s := serve(t, twoSpaces(), testConfig(t, "--http-max-body=8MiB"))
	body := `{"model":"m","block_size":2,"token_ids":[` + strings.Repeat("128255,", 999_999) + `0]}`
	resp, data := s.do(t, "POST", "/v1/find_matches", body)
	if resp.StatusCode != 200 || !bytes.Contains(data, []byte(`"blocks":500000,`)) {
		t.Errorf("%s %.200s", resp.Status, data)
	}
}

func TestWorkersListsWhatEachRankHolds(t *testing.T) {
	s := serve(t, twoSpaces(), testConfig(t))
	_, all := s.do(t, "GET", "/v1/workers", "")
	if !json.Valid(all) || bytes.Count(all, []byte(`"model":`)) != 3 {
		t.Errorf("got %s", all)
	}
	resp, one := s.do(t, "GET", "/v1/workers?model=n%22%C3%A9", "")
	const want = `{"spaces":[{"model":"n\"é","group":"","block_size":2,"workers":[` +
		`{"worker_id":"1","state":"unregistered","drained":false,"blocks":1,"ranks":[{"dp_rank":0,"device":1,"host_pinned":0,"disk":0,"external":0}]}]}]}` + "\n"
	if resp.StatusCode != 200 || string(one) != want {
		t.Errorf("got %s, want %s", one, want)
	}
	if !bytes.Contains(all, []byte(`{"worker_id":"7","state":"unregistered","drained":false,"blocks":6,"ranks":[{"dp_rank":0,"device":2,"host_pinned":0,"disk":1,"external":0},`+
		`{"dp_rank":1,"device":2,"host_pinned":1,"disk":0,"external":0}]},{"worker_id":"8",`)) {
		t.Errorf("got %s", all)
	}
	if _, none := s.do(t, "GET", "/v1/workers?model=x", ""); string(none) != "{\"spaces\":[]}\n" {
		t.Errorf("got %s", none)
	}
}

func TestRequestIDs(t *testing.T) {
	s := serve(t, twoSpaces(), testConfig(t))
	id := func(given string) string {
		resp, _ := s.do(t, "GET", "/livez", "", "X-Request-Id", given)
		return resp.Header.Get("X-Request-Id")
	}
	for _, own := range []string{"abc", "0f-9_A.:/+=", strings.Repeat("x", 128)} {
		if got := id(own); got != own {
			t.Errorf("gave %q, got %q", own, got)
		}
	}
	seen := map[string]bool{}
	for _, bad := range []string{"", "a b", "a\"b", "é", strings.Repeat("x", 129)} {
		got := id(bad)
		if !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(got) || seen[got] {
			t.Errorf("gave %q, got %q", bad, got)
		}
		seen[got] = true
	}
}
