package probe

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/kvatlas/kvatlas/internal/doctor"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
	"github.com/kvatlas/kvatlas/registry"
)

// decoding answers as a sound decode engine and counts what it is asked to generate.
func decoding(asked *atomic.Int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch r.URL.Path {
		case "/v1/models":
			_, _ = io.WriteString(w, `{"data":[{"id":"m","owned_by":"vllm"}]}`)
		case "/v1/completions":
			asked.Add(1)
			_, _ = io.WriteString(w, `{"usage":{"prompt_tokens_details":{"cached_tokens":64}},"kv_transfer_params":{"do_remote_prefill":true}}`)
		default:
			http.NotFound(w, r)
		}
	}
}

// gathered looks at workers of which nothing is listened to, and whose engines may take so long for an answer.
func gathered(t *testing.T, answer time.Duration, workers ...registry.Worker) []doctor.Facts {
	t.Helper()
	entries := make([]registry.Entry, len(workers))
	for i, w := range workers {
		w.Model, w.BlockSize, w.Transport = "m", 16, registry.NoEvents
		if w.Ranks == nil {
			w.Ranks = []uint32{0}
		}
		entries[i] = registry.Entry{Worker: w, Key: w.Key(), State: registry.Live}
	}
	facts, err := Gather(t.Context(), Config{
		Read:   func(context.Context) ([]registry.Entry, error) { return entries, nil },
		Tokens: 64, Answer: answer, Listen: time.Millisecond, AtOnce: 4, Token: func(*registry.Worker) string { return secret },
	})
	if err != nil {
		t.Fatal(err)
	}
	return facts
}

func at(s *httptest.Server) registry.Endpoints { return registry.Endpoints{HTTP: s.URL} }

func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}

// TestBootstrapServers: what a prefill worker's bootstrap server says wrongly is the finding, and no prompt is sent to
// a decode worker that would look for an engine without a name.
func TestBootstrapServers(t *testing.T) {
	for name, c := range map[string]struct {
		says  func(w http.ResponseWriter)
		ranks []uint32
		found string // "": nothing
	}{
		"sound":             {func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"0":{"engine_id":"e"}}`) }, nil, ""},
		"two ranks":         {func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"3":{"engine_id":"e"},"4":{"engine_id":"f"}}`) }, []uint32{3, 4}, ""},
		"another rank":      {func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"1":{"engine_id":"e"}}`) }, nil, "it does not list rank 0 (it lists 1)"},
		"one of two ranks":  {func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"3":{"engine_id":"e"}}`) }, []uint32{3, 4}, "it does not list rank 4"},
		"no rank":           {func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{}`) }, nil, "it does not list rank 0 (it lists 0)"},
		"null":              {func(w http.ResponseWriter) { _, _ = io.WriteString(w, `null`) }, nil, "it does not list rank 0"},
		"without a name":    {func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"0":{"worker_addr":{}}}`) }, nil, "it does not list rank 0"},
		"of another kind":   {func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"0":{"engine_id":7}}`) }, nil, "/query: json"},
		"a list":            {func(w http.ResponseWriter) { _, _ = io.WriteString(w, `[]`) }, nil, "/query: json"},
		"no such route":     {func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) }, nil, "/query: status 404"},
		"sends one on":      {func(w http.ResponseWriter) { w.Header().Set("Location", "/other"); w.WriteHeader(302) }, nil, "/query: status 302"},
		"cut off":           {func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"0":{"engi`) }, nil, "/query: unexpected end"},
		"hangs up":          {func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, nil, "EOF"},
		"endless":           {func(w http.ResponseWriter) { endless(w, `{"0":{"engine_id":"`, "x") }, nil, "bootstrap server at"},
		"another rank's id": {func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"-1":{"engine_id":"e"}}`) }, nil, "/query: json"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked [2]atomic.Int64
			meet := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") != "" {
					t.Error("it is shown the engine's token")
				}
				c.says(w)
			})
			p := registry.Worker{ID: 1, Ranks: c.ranks, Role: registry.Prefill, KVTransfer: registry.TransferMooncake, Endpoints: at(serve(t, decoding(&asked[0])))}
			p.Endpoints.Bootstrap = strings.TrimPrefix(meet.URL, "http://")
			d := registry.Worker{ID: 2, Role: registry.Decode, KVTransfer: registry.TransferMooncake, Endpoints: at(serve(t, decoding(&asked[1])))}
			facts := gathered(t, time.Minute, p, d)
			for i, f := range facts {
				switch {
				case f.Pair == nil:
					t.Fatal("they were not tried")
				case c.found == "" && (f.Pair.Error != "" || f.Pair.Cached != 64):
					t.Errorf("%+v", f.Pair)
				case c.found != "" && (!strings.Contains(f.Pair.Error, c.found) || f.Pair.Met || f.Pair.Cached >= 0):
					t.Errorf("%+v", f.Pair)
				}
				own := int64(2 * len(facts[i].Worker.Ranks)) // its own prompt, twice
				if n := asked[i].Load(); n != own+map[bool]int64{true: 1}[c.found == ""] {
					t.Errorf("worker %d got %d prompts", i+1, n)
				}
			}
		})
	}
}

// endless answers until nobody reads.
func endless(w http.ResponseWriter, begin, goOn string) {
	_, _ = io.WriteString(w, begin)
	more := []byte(strings.Repeat(goOn, 64<<10/len(goOn)))
	for range 1 << 14 { // at most a gigabyte
		if _, err := w.Write(more); err != nil {
			return
		}
	}
}

// TestHostileEngines: whatever engines answer, at whichever route, the doctor ends, says a short text of it, follows
// nobody elsewhere, and judges.
func TestHostileEngines(t *testing.T) {
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	_, _ = z.Write(bytes.Repeat([]byte("["), 16<<20))
	_ = z.Close()
	var followed atomic.Int64
	elsewhere := serve(t, func(http.ResponseWriter, *http.Request) { followed.Add(1) })
	says := map[string]http.HandlerFunc{
		"endless": func(w http.ResponseWriter, _ *http.Request) { endless(w, `{"data":[`, `{"id":"m"},`) },
		"endless text": func(w http.ResponseWriter, _ *http.Request) {
			endless(w, "", "vllm:cache_config_info{block_size=\"9\"} 1\n")
		},
		"drips": func(w http.ResponseWriter, r *http.Request) {
			for range 100 {
				_, _ = io.WriteString(w, " ")
				_ = http.NewResponseController(w).Flush()
				select {
				case <-r.Context().Done():
					return
				case <-time.After(50 * time.Millisecond):
				}
			}
		},
		"deep": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat(`{"data":[`, 1<<16))
		},
		"bomb": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb.Bytes())
		},
		"no JSON": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "\x1b[2J\x00\xff\xfe") },
		"redirects": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		},
		"headers":  func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 12<<20)) },
		"null":     func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "null") },
		"a number": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "1e999999999") },
		"wrong types": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"data":{"id":[]},"tokens":"x","usage":[],"kv_transfer_params":"no","page_size":"x"}`)
		},
		"huge numbers": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Date", "Fri, 31 Dec 9999 23:59:59 GMT")
			_, _ = io.WriteString(w, `{"data":[{"id":"m"}],"tokens":[4294967295],"usage":{"prompt_tokens_details":{"cached_tokens":9223372036854775807}},"kv_transfer_params":{"a":1e400},"page_size":-1,"dp_size":-9223372036854775808}`)
		},
		"negative": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Date", "Mon, 01 Jan 0001 00:00:00 GMT")
			_, _ = io.WriteString(w, `{"data":[{"id":"m"}],"tokens":[1],"usage":{"prompt_tokens_details":{"cached_tokens":-9223372036854775808}},"kv_transfer_params":{}}`)
		},
		"shouts": func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, strings.Repeat("\x1b]0;x\a"+r.Header.Get("Authorization"), 1<<16), http.StatusTeapot)
		},
		"hangs up": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	}
	sound := decoding(new(atomic.Int64))
	routes := []string{"", "/metrics/server_info/tokenize", "/v1/completions", "/query"} // all of them, or these alone
	routes = routes[:racetest.Few(len(routes))]
	for name, say := range says {
		for _, route := range routes {
			t.Run(name+" at "+route, func(t *testing.T) {
				t.Parallel()
				h := func(w http.ResponseWriter, r *http.Request) {
					if route == "" || strings.Contains(route, r.URL.Path) {
						_, _ = io.Copy(io.Discard, r.Body)
						say(w, r)
						return
					}
					sound(w, r)
				}
				var workers []registry.Worker
				for i, way := range []registry.KVTransfer{registry.TransferVLLM, registry.TransferMooncake, registry.TransferSGLang} {
					for j, role := range []registry.Role{registry.Prefill, registry.Decode} {
						w := registry.Worker{ID: uint64(2*i + j), Role: role, KVTransfer: way, Group: fmt.Sprint(i), Endpoints: at(serve(t, h))}
						w.Endpoints.Bootstrap = strings.TrimPrefix(w.Endpoints.HTTP, "http://")
						workers = append(workers, w)
					}
				}
				facts := gathered(t, 300*time.Millisecond, workers...)
				all := doctor.Judge(facts)
				if route == "" && doctor.Worst(all) != doctor.Fault {
					t.Error("no fault is found")
				}
				for _, f := range all {
					if len(f.Found) > 1100 || !utf8.ValidString(f.Found) || strings.ContainsAny(f.Found, "\x1b\x00\a\n") || strings.Contains(f.Found, secret) {
						t.Errorf("%q", f.Found)
					}
					if strings.Contains(f.Found, "-9223372036854775808") || strings.Contains(f.Found, "-1") && f.Check == "dp_ranks" {
						t.Errorf("%+v", f)
					}
				}
			})
		}
	}
	t.Cleanup(func() {
		if n := followed.Load(); n != 0 {
			t.Errorf("%d requests went elsewhere", n)
		}
	})
}

// An engine is told the rank where several are registered at its address, of one worker or of several, and only there: one
// of a single rank, whichever of its model's that is, refuses others than its own first.
func TestEnginesAreToldRanksThatTheyHave(t *testing.T) {
	for _, c := range []struct {
		workers [][]uint32
		told    bool
	}{{[][]uint32{{0}}, false}, {[][]uint32{{3}}, false}, {[][]uint32{{0, 1}}, true}, {[][]uint32{{0}, {1}}, true}} {
		var asked, told atomic.Int64
		answer := decoding(&asked)
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-data-parallel-rank") != "" {
				told.Add(1)
			}
			answer(w, r)
		})
		var list []registry.Worker
		for i, ranks := range c.workers {
			list = append(list, registry.Worker{ID: uint64(i), Ranks: ranks, Endpoints: at(s)})
		}
		gathered(t, time.Minute, list...)
		if n := told.Load(); asked.Load() == 0 || (n > 0) != c.told || c.told && n != asked.Load() {
			t.Errorf("%v: %d of %d are told", c.workers, n, asked.Load())
		}
	}
}
