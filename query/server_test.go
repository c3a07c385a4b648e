package query

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/conf"
	"github.com/kvatlas/kvatlas/internal/obs"
	"github.com/kvatlas/kvatlas/shard"
)

// served is a Server on a free port of loopback.
type served struct {
	*Server
	url     string
	addr    string
	metrics *obs.Metrics
	log     *lockedBuffer
	client  *http.Client
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
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

func serve(t testing.TB, ix Index, cfg Config, checks ...Check) *served {
	t.Helper()
	log, m := new(lockedBuffer), obs.NewMetrics()
	s := New(cfg, Deps{Index: ix, Log: slog.New(slog.NewTextHandler(log, nil)), Metrics: m, Checks: checks})
	ln, err := s.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	client := &http.Client{Transport: &http.Transport{}, Timeout: 20 * time.Second}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second) //nolint:usetesting // t's context has ended
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return &served{s, "http://" + ln.Addr().String(), ln.Addr().String(), m, log, client}
}

// answer is the head of an answer whose body has been read.
type answer struct {
	StatusCode int
	Status     string
	Header     http.Header
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
	return answer{resp.StatusCode, resp.Status, resp.Header}, data
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
			local, err := core.LocalHashes(nil, tokens, size, core.HashOptions{Seed: core.Seed(name.lora, name.salt)})
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
		`{"worker_id":"1","ranks":[{"dp_rank":0,"device":1,"host_pinned":0,"disk":0,"external":0}]}]}]}` + "\n"
	if resp.StatusCode != 200 || string(one) != want {
		t.Errorf("got %s, want %s", one, want)
	}
	if !bytes.Contains(all, []byte(`{"worker_id":"7","ranks":[{"dp_rank":0,"device":2,"host_pinned":0,"disk":1,"external":0},`+
		`{"dp_rank":1,"device":2,"host_pinned":1,"disk":0,"external":0}]},{"worker_id":"18446744073709551615",`)) {
		t.Errorf("got %s", all)
	}
	if _, none := s.do(t, "GET", "/v1/workers?model=x", ""); string(none) != "{\"spaces\":[]}\n" {
		t.Errorf("got %s", none)
	}
}

func TestBadRequestsAreRefusedAndCountedAndChangeNothing(t *testing.T) {
	ix := twoSpaces()
	s := serve(t, ix, testConfig(t, "--http-max-body=2KiB", "--http-max-tokens=20"))
	_, before := s.do(t, "GET", "/v1/workers", "")
	const find = "/v1/find_matches"
	tests := []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		field, reason            string
	}{
		{name: "empty body", body: ``, status: 400, field: "body", reason: "malformed_json"},
		{name: "malformed", body: `{"model":"m",`, status: 400, field: "body", reason: "malformed_json"},
		{name: "not an object", body: `[1]`, status: 400, field: "body", reason: "malformed_json"},
		{name: "trailing text", body: `{"model":"m","hashes":[1]} x`, status: 400, field: "body", reason: "malformed_json"},
		{name: "invalid UTF-8", body: "{\"model\":\"\xff\",\"hashes\":[1]}", status: 400, field: "model", reason: "malformed_json"},
		{name: "deep", body: `{"model":"m","hashes":` + strings.Repeat("[", 500), status: 400, field: "hashes[0]", reason: "wrong_type"},
		{name: "unknown field", body: `{"model":"m","hash":[1]}`, status: 400, field: "hash", reason: "unknown_field"},
		{name: "field in other case", body: `{"Model":"m"}`, status: 400, field: "Model", reason: "unknown_field"},
		{name: "duplicate field", body: `{"model":"m","model":"m"}`, status: 400, field: "model", reason: "duplicate_field"},
		{name: "model is a number", body: `{"model":1}`, status: 400, field: "model", reason: "wrong_type"},
		{name: "hashes are an object", body: `{"model":"m","hashes":{}}`, status: 400, field: "hashes", reason: "wrong_type"},
		{name: "hash is a bool", body: `{"model":"m","hashes":[1,true]}`, status: 400, field: "hashes[1]", reason: "wrong_type"},
		{name: "hash is null", body: `{"model":"m","hashes":[null]}`, status: 400, field: "hashes[0]", reason: "wrong_type"},
		{name: "hash is negative", body: `{"model":"m","hashes":[1,2,-3]}`, status: 400, field: "hashes[2]", reason: "negative"},
		{name: "hash is a negative text", body: `{"model":"m","hashes":["-3"]}`, status: 400, field: "hashes[0]", reason: "negative"},
		{name: "hash is a float", body: `{"model":"m","hashes":[1.5]}`, status: 400, field: "hashes[0]", reason: "not_integer"},
		{name: "hash is a whole float", body: `{"model":"m","hashes":[1.0]}`, status: 400, field: "hashes[0]", reason: "not_integer"},
		{name: "hash has an exponent", body: `{"model":"m","hashes":[1e3]}`, status: 400, field: "hashes[0]", reason: "not_integer"},
		{name: "hash is a word", body: `{"model":"m","hashes":["abc"]}`, status: 400, field: "hashes[0]", reason: "not_integer"},
		{name: "hash is 2^64", body: `{"model":"m","hashes":[18446744073709551616]}`, status: 400, field: "hashes[0]", reason: "out_of_range"},
		{name: "hash is 2^64 as text", body: `{"model":"m","hashes":[7,"18446744073709551616"]}`, status: 400, field: "hashes[1]", reason: "out_of_range"},
		{name: "hash has a leading zero", body: `{"model":"m","hashes":[01]}`, status: 400, field: "body", reason: "malformed_json"},
		{name: "token is 2^32", body: `{"model":"m","token_ids":[1,4294967296]}`, status: 400, field: "token_ids[1]", reason: "out_of_range"},
		{name: "token is negative", body: `{"model":"m","token_ids":[-1]}`, status: 400, field: "token_ids[0]", reason: "negative"},
		{name: "token is a text", body: `{"model":"m","token_ids":["1"]}`, status: 400, field: "token_ids[0]", reason: "wrong_type"},
		{name: "too many tokens", body: `{"model":"m","token_ids":[` + strings.Repeat("1,", 20) + `1]}`, status: 400, field: "token_ids", reason: "too_many"},
		{name: "too many hashes", body: `{"model":"m","hashes":[` + strings.Repeat("1 ,", 20) + `1]}`, status: 400, field: "hashes", reason: "too_many"},
		{name: "no model", body: `{"hashes":[1]}`, status: 400, field: "model", reason: "missing"},
		{name: "null model", body: `{"model":null,"hashes":[1]}`, status: 400, field: "model", reason: "missing"},
		{name: "neither", body: `{"model":"m"}`, status: 400, field: "token_ids", reason: "missing"},
		{name: "both", body: `{"model":"m","hashes":[1],"token_ids":[1]}`, status: 400, field: "hashes", reason: "conflict"},
		{name: "hashes and LoRA", body: `{"model":"m","hashes":[1],"lora_name":"l"}`, status: 400, field: "lora_name", reason: "conflict"},
		{name: "hashes and salt", body: `{"model":"m","hashes":[1],"cache_salt":"s"}`, status: 400, field: "cache_salt", reason: "conflict"},
		{name: "long model", body: `{"hashes":[1],"model":"` + strings.Repeat("m", 1025) + `"}`, status: 400, field: "model", reason: "out_of_range"},
		{name: "block size 0", body: `{"model":"m","hashes":[1],"block_size":0}`, status: 400, field: "block_size", reason: "out_of_range"},
		{name: "block size 1025", body: `{"model":"m","hashes":[1],"block_size":1025}`, status: 400, field: "block_size", reason: "out_of_range"},
		{name: "block size is a text", body: `{"model":"m","hashes":[1],"block_size":"2"}`, status: 400, field: "block_size", reason: "wrong_type"},
		{name: "block size mismatch", body: `{"model":"m","hashes":[1],"block_size":16}`, status: 400, field: "block_size", reason: "block_size_mismatch"},
		{name: "block size of another group", body: `{"model":"m","hashes":[1],"block_size":4,"group":""}`, status: 400, field: "block_size", reason: "block_size_mismatch"},
		{name: "no blocks", body: `{"model":"m","hashes":[1],"max_blocks":0}`, status: 400, field: "max_blocks", reason: "out_of_range"},
		{name: "unknown model", body: `{"model":"x","hashes":[1]}`, status: 404, field: "model", reason: "unknown_model"},
		{name: "unknown group", body: `{"model":"m","group":"x","hashes":[1]}`, status: 404, field: "group", reason: "unknown_group"},
		{name: "body over the limit", body: strings.Repeat(" ", 2049), status: 413, field: "body", reason: "body_too_large"},
		{name: "compressed", body: `{}`, headers: []string{"Content-Encoding", "gzip"}, status: 415, field: "Content-Encoding", reason: "unsupported_encoding"},
		{name: "binary", body: `{}`, headers: []string{"Content-Type", "application/octet-stream"}, status: 415, field: "Content-Type", reason: "unsupported_media_type"},
		{name: "argument", path: find + "?model=m", body: `{}`, status: 400, field: "model", reason: "unknown_argument"},
		{name: "argument of workers", method: "GET", path: "/v1/workers?group=g", status: 400, field: "group", reason: "unknown_argument"},
		{name: "GET find", method: "GET", status: 405, field: "method", reason: "method_not_allowed"},
		{name: "PUT find", method: "PUT", body: `{"model":"m","hashes":[1]}`, status: 405, field: "method", reason: "method_not_allowed"},
		{name: "POST workers", path: "/v1/workers", status: 405, field: "method", reason: "method_not_allowed"},
		{name: "DELETE metrics", method: "DELETE", path: "/metrics", status: 405, field: "method", reason: "method_not_allowed"},
		{name: "unknown route", path: "/v1/find", status: 404, field: "path", reason: "unknown_route"},
		{name: "route with a slash", path: find + "/", status: 404, field: "path", reason: "unknown_route"},
		{name: "route with dots", path: "/x/.." + find, status: 404, field: "path", reason: "unknown_route"},
		{name: "route encoded", path: "/v1/find%5fmatches", status: 404, field: "path", reason: "unknown_route"},
		{name: "header over the limit", headers: []string{"X-Long", strings.Repeat("x", 9000)}, status: 431, field: "header", reason: "header_too_large"},
	}
	refused := map[string]int{}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			method, path := tc.method, tc.path
			if method == "" {
				method = "POST"
			}
			if path == "" {
				path = find
			}
			resp, data := s.do(t, method, path, tc.body, tc.headers...)
			var p problemJSON
			d := json.NewDecoder(bytes.NewReader(data))
			d.DisallowUnknownFields()
			if err := d.Decode(&p); err != nil {
				t.Fatalf("%v in %q", err, data)
			}
			if resp.StatusCode != tc.status || p.Error.Field != tc.field || p.Error.Reason != tc.reason || p.Error.Message == "" {
				t.Errorf("got %d %+v, want %d %s %s", resp.StatusCode, p.Error, tc.status, tc.field, tc.reason)
			}
			if resp.Header.Get("Content-Type") != "application/json" || resp.Header.Get("X-Request-Id") == "" {
				t.Errorf("headers %v", resp.Header)
			}
			if tc.status == 405 && resp.Header.Get("Allow") == "" {
				t.Error("no Allow header")
			}
			refused[tc.reason]++
			if got := s.counter(fmt.Sprintf("kvatlas_http_refused_total{reason=%q}", tc.reason)); got != fmt.Sprint(refused[tc.reason]) {
				t.Errorf("counted %s refusals for %s, want %d", got, tc.reason, refused[tc.reason])
			}
		})
	}
	if _, after := s.do(t, "GET", "/v1/workers", ""); !bytes.Equal(before, after) {
		t.Errorf("the index changed from %s to %s", before, after)
	}
	if ix.finds != 0 {
		t.Errorf("%d lookups were made for bad requests", ix.finds)
	}
	// The server is as good as before.
	if resp, _ := s.do(t, "POST", find, `{"model":"m","hashes":[1]}`); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
}

// raw sends bytes as they are and returns all that comes back until the server
// closes the connection.
func (s *served) raw(t *testing.T, request string) string {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestWhatIsNotHTTPIsAnsweredAndCounted(t *testing.T) {
	s := serve(t, twoSpaces(), testConfig(t, "--http-read-timeout=300ms", "--http-max-body=1KiB"))
	const post = "POST /v1/find_matches HTTP/1.1\r\nHost: x\r\n"
	for name, tc := range map[string]struct{ request, status, reason string }{
		"nonsense":        {"nonsense\r\n\r\n", "400", "malformed_request"},
		"lying length":    {post + "Content-Length: 99999999999\r\n\r\n{}", "413", "body_too_large"},
		"chunks too many": {post + "Transfer-Encoding: chunked\r\n\r\n401\r\n" + strings.Repeat(" ", 1025) + "\r\n0\r\n\r\n", "413", "body_too_large"},
		"broken chunk":    {post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n", "400", "malformed_request"},
		"slow body":       {post + "Content-Length: 10\r\n\r\n{", "408", "timeout"},
		"slow header":     {"POST /v1/find_matches HT", "408", "timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			answer := s.raw(t, tc.request)
			if !strings.HasPrefix(answer, "HTTP/1.1 "+tc.status+" ") || !strings.Contains(answer, `"reason":"`+tc.reason+`"`) {
				t.Errorf("got %q, want %s %s", answer, tc.status, tc.reason)
			}
			if s.counter(fmt.Sprintf("kvatlas_http_refused_total{reason=%q}", tc.reason)) == "0" {
				t.Error("not counted")
			}
		})
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
		if !regexp.MustCompile(`^[0-9a-f]{12}-[0-9a-f]+$`).MatchString(got) || seen[got] {
			t.Errorf("gave %q, got %q", bad, got)
		}
		seen[got] = true
	}
}

func TestHealthFollowsChecksAndDraining(t *testing.T) {
	var mu sync.Mutex
	reason := "17 messages behind"
	s := serve(t, twoSpaces(), testConfig(t), Check{"ingest", func() string {
		mu.Lock()
		defer mu.Unlock()
		return reason
	}})
	want := func(path string, status int, body string) {
		t.Helper()
		resp, got := s.do(t, "GET", path, "")
		if resp.StatusCode != status || string(got) != body+"\n" {
			t.Errorf("%s: %d %s, want %d %s", path, resp.StatusCode, got, status, body)
		}
	}
	want("/livez", 200, `{"status":"ok"}`)
	want("/readyz", 503, `{"status":"not ready"}`)
	want("/readyz?verbose", 503, `{"status":"not ready","checks":[{"name":"serving","ok":true},{"name":"ingest","ok":false,"reason":"17 messages behind"}]}`)
	mu.Lock()
	reason = ""
	mu.Unlock()
	want("/readyz", 200, `{"status":"ready"}`)
	want("/readyz?verbose", 200, `{"status":"ready","checks":[{"name":"serving","ok":true},{"name":"ingest","ok":true}]}`)
	s.Drain()
	want("/readyz?verbose", 503, `{"status":"not ready","checks":[{"name":"serving","ok":false,"reason":"shutting down"},{"name":"ingest","ok":true}]}`)
	want("/livez", 200, `{"status":"ok"}`)
	if resp, _ := s.do(t, "POST", "/v1/find_matches", `{"model":"m","hashes":[1]}`); resp.StatusCode != 200 {
		t.Errorf("while draining: %s", resp.Status)
	}
	if resp, body := s.do(t, "HEAD", "/livez", ""); resp.StatusCode != 200 || len(body) != 0 {
		t.Errorf("HEAD: %s %q", resp.Status, body)
	}
}

func TestMetricsAndVersion(t *testing.T) {
	s := serve(t, twoSpaces(), testConfig(t))
	s.do(t, "POST", "/v1/find_matches", `{"model":"m","hashes":[1]}`)
	s.do(t, "POST", "/v1/find_matches", `{`)
	_, data := s.do(t, "GET", "/metrics", "")
	for _, want := range []string{
		"# HELP kvatlas_http_requests_total Requests answered, by route and status.\n# TYPE kvatlas_http_requests_total counter\n",
		"# TYPE kvatlas_http_request_duration_seconds histogram\n",
		`kvatlas_http_requests_total{route="find_matches",code="400"} 1`,
		`kvatlas_http_request_duration_seconds_count{route="find_matches"} 2`,
		"kvatlas_http_requests_in_flight 1\n", "kvatlas_http_connections ", "kvatlas_build_info{",
	} {
		if !bytes.Contains(data, []byte(want)) {
			t.Errorf("no %q in\n%s", want, data)
		}
	}
	_, data = s.do(t, "GET", "/version", "")
	var v obs.Version
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil || v != obs.ReadVersion() {
		t.Errorf("%v in %s", err, data)
	}
}

func TestAPanicIsOneRequestsProblem(t *testing.T) {
	ix := twoSpaces()
	ix.spaces[2].panic = true
	s := serve(t, ix, testConfig(t))
	resp, data := s.do(t, "POST", "/v1/find_matches", `{"model":"n\"é","hashes":[1]}`)
	if resp.StatusCode != 500 || !bytes.Contains(data, []byte(`"reason":"internal"`)) {
		t.Errorf("%s %s", resp.Status, data)
	}
	if !strings.Contains(s.log.String(), "broken index") || s.counter(`kvatlas_http_refused_total{reason="internal"}`) != "1" {
		t.Errorf("not logged or not counted: %s", s.log)
	}
	if resp, _ := s.do(t, "POST", "/v1/find_matches", `{"model":"m","hashes":[1]}`); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
}

func TestSlowQueriesAreLogged(t *testing.T) {
	s := serve(t, twoSpaces(), testConfig(t, "--http-slow-query=1ns"))
	s.do(t, "POST", "/v1/find_matches", `{"model":"m","hashes":[1]}`, "X-Request-Id", "slow-1")
	if !strings.Contains(s.log.String(), "request_id=slow-1") { // logged before the answer is written
		t.Errorf("not logged: %s", s.log)
	}
}

func TestConnectionsAreLimited(t *testing.T) {
	for _, tc := range []struct{ flag, status, reason string }{
		{"--http-max-connections-per-ip=2", "429", "too_many_connections_of_address"},
		{"--http-max-connections=2", "503", "too_many_connections"},
	} {
		s := serve(t, twoSpaces(), testConfig(t, tc.flag))
		first := s.open(t)
		s.open(t)
		for n := range 3 {
			answer := s.raw(t, "")
			if !strings.HasPrefix(answer, "HTTP/1.1 "+tc.status+" ") || !strings.Contains(answer, `"reason":"`+tc.reason+`"`) {
				t.Errorf("%s: got %q", tc.flag, answer)
			}
			if got := s.counter(fmt.Sprintf("kvatlas_http_refused_total{reason=%q}", tc.reason)); got != fmt.Sprint(n+1) {
				t.Errorf("counted %s refusals, want %d", got, n+1)
			}
		}
		// A closed connection makes room.
		if _, err := io.WriteString(first, "GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(first); err != nil { // the server has closed it
			t.Fatal(err)
		}
		eventually(t, func() bool { return s.counter("kvatlas_http_connections") == "1" })
		s.open(t)
	}
}

// eventually waits for what is sure to become true.
func eventually(t *testing.T, f func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for !f() {
		select {
		case <-time.After(time.Millisecond):
		case <-deadline:
			t.Fatal("it did not become true")
		}
	}
}

// open opens a connection on which one request has been answered.
func (s *served) open(t *testing.T) net.Conn {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() }) //nolint:errcheck // only to free it
	if _, err := io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 {
		t.Fatal(err, resp.Status)
	}
	return c
}

func TestShutdownClosesIdleConnectionsUnderUse(t *testing.T) {
	s := serve(t, twoSpaces(), testConfig(t))
	var users sync.WaitGroup
	for range 8 {
		c := s.open(t)
		users.Go(func() {
			for { // until the server closes it
				if _, err := io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
					return
				}
				if _, err := c.Read(make([]byte, 4096)); err != nil {
					return
				}
			}
		})
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	users.Wait()
}

func TestShutdownAnswersWhatIsUnderWay(t *testing.T) {
	ix := twoSpaces()
	entered, release := make(chan bool), make(chan bool)
	s := New(testConfig(t), Deps{Index: blockingIndex{ix, entered, release}, Log: slog.New(slog.DiscardHandler), Metrics: obs.NewMetrics()})
	ln, err := s.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	answered := make(chan string, 1)
	go func() {
		resp, err := http.Post("http://"+ln.Addr().String()+"/v1/find_matches", "application/json", //nolint:noctx,gosec // loopback
			strings.NewReader(`{"model":"m","hashes":[1]}`))
		if err != nil {
			answered <- err.Error()
			return
		}
		defer resp.Body.Close()
		answered <- resp.Status
	}()
	<-entered
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(short); err == nil {
		t.Error("no error though a request is under way")
	}
	close(release)
	if status := <-answered; status != "200 OK" {
		t.Errorf("the request under way got %q", status)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// blockingIndex makes one lookup wait.
type blockingIndex struct {
	*fakeIndex
	entered, release chan bool
}

func (ix blockingIndex) Spaces() []event.Space {
	ix.entered <- true
	<-ix.release
	return ix.fakeIndex.Spaces()
}
