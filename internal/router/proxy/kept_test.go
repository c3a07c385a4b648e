package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/registry"
)

// keeperEngines are engines that keep responses, files and batches, each its own.
type keeperEngines struct {
	mu    sync.Mutex
	n     int
	at    map[string]int // "kind/id": engine
	asked []string
	sick  int         // what number 2 answers where it has nothing; 0 is 404
	gone  atomic.Bool // none answers at all
}

// take returns who was asked for this since the last time: what engines were asked
// before, and given up for, may come to them later.
func (k *keeperEngines) take(request string) (asked []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, a := range k.asked {
		if strings.HasSuffix(a, " "+request) {
			asked = append(asked, a)
		}
	}
	k.asked = nil
	return asked
}

// sicken has number 2 answer so where it has nothing. Requests that were given up for may be
// on their way still.
func (k *keeperEngines) sicken(status int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sick = status
}

func (k *keeperEngines) serve(i int, w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.gone.Load() {
		panic(http.ErrAbortHandler)
	}
	k.asked = append(k.asked, fmt.Sprintf("%d %s %s", i, r.Method, r.URL.Path))
	kind, id := keptPath(r.URL.Path)
	switch {
	case id != "":
		at, ok := k.at[kind+"/"+id]
		if !ok || at != i {
			if k.sick != 0 && i == 2 {
				w.WriteHeader(k.sick)
				return
			}
			http.Error(w, "{}", http.StatusNotFound)
			return
		}
		_, _ = fmt.Fprintf(w, `{"id":%q,"engine":%d}`, id, i)
	case r.Method == http.MethodGet:
		var data []string
		for key, at := range k.at {
			if name, ok := strings.CutPrefix(key, kind+"/"); ok && at == i {
				data = append(data, fmt.Sprintf(`{"id":%q}`, name))
			}
		}
		_, _ = fmt.Fprintf(w, `{"object":"list","data":[%s]}`, strings.Join(data, ","))
	default:
		var refers struct {
			Response string `json:"previous_response_id"`
			File     string `json:"input_file_id"`
		}
		_ = json.Unmarshal(body, &refers) // forms are none
		if at, ok := k.at["responses/"+refers.Response]; refers.Response != "" && (!ok || at != i) {
			http.Error(w, "{}", http.StatusNotFound)
			return
		}
		if at, ok := k.at["files/"+refers.File]; refers.File != "" && (!ok || at != i) {
			http.Error(w, "{}", http.StatusNotFound)
			return
		}
		k.n++
		id := fmt.Sprintf("%s_%d", kind, k.n)
		k.at[kind+"/"+id] = i
		if strings.Contains(string(body), `"stream":true`) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprintf(w, "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"i")
			_ = http.NewResponseController(w).Flush()
			_, _ = fmt.Fprintf(w, "d\" : %q}}\n\nevent: response.completed\ndata: {\"type\":\"response.completed\"}\n\n", id)
			return
		}
		_, _ = fmt.Fprintf(w, `{"object":"response","id":%q,"text":"\"id\":\"resp_evil\""}`, id)
	}
}

func newKeepers(t *testing.T) (*lab, *keeperEngines) {
	k := &keeperEngines{at: map[string]int{}}
	var urls []string
	for i := range 3 {
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { k.serve(i, w, r) }))
		t.Cleanup(h.Close)
		urls = append(urls, h.URL)
	}
	return newLab(t, setup{engines: 3, registry: func(i int, w *registry.Worker) { w.Endpoints.HTTP = urls[i] }}), k
}

func (l *lab) do(method, path string) (int, string) {
	l.t.Helper()
	req, err := http.NewRequestWithContext(l.t.Context(), method, l.front.URL+path, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		l.t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

// forget makes the router one that has just started.
func (l *lab) forget() { l.proxy.kept = newLRU[xxh3.Uint128, uint64](100, 0) }

// What an engine keeps is asked of that engine, and of all by a router that does not
// know it; what goes on with it goes to that engine, too.
func TestWhatEnginesKeep(t *testing.T) {
	l, k := newKeepers(t)
	if status, data := l.do("POST", "/v1/responses/x/cancel"); status != 404 || !strings.Contains(data, `"not_found"`) {
		t.Errorf("before there is any: %d %s", status, data)
	}
	for i := range 9 {
		if status, data, _ := l.post("/v1/responses", fmt.Sprintf(`{"model":"org/model","input":"%d","stream":%t}`, i, i%2 == 0)); status != 200 {
			t.Fatalf("%d %s", status, data)
		}
	}
	for _, known := range []bool{true, false} {
		for i := range 9 {
			id := fmt.Sprintf("responses_%d", i+1)
			for n, request := range []string{"GET /v1/responses/" + id, "GET /v1/responses/" + id + "/input_items", "POST /v1/responses/" + id + "/cancel", "DELETE /v1/responses/" + id} {
				if !known && n == 0 {
					l.forget()
				}
				method, path, _ := strings.Cut(request, " ")
				status, data := l.do(method, path)
				asked := k.take(request)
				if want := fmt.Sprintf(`"engine":%d}`, k.at["responses/"+id]); status != 200 || !strings.Contains(data, want) {
					t.Errorf("%s: %d %s, want %s", request, status, data, want)
				}
				if only := known || n > 0; only && len(asked) != 1 || !only && len(asked) == 0 {
					t.Errorf("%s, known %t: asked %q", request, known, asked)
				}
			}
		}
	}
	for i := range 9 {
		id := fmt.Sprintf("responses_%d", i+1)
		if i%2 == 0 {
			l.forget()
		}
		for range 3 {
			if status, data, h := l.post("/v1/responses", `{"model":"org/model","input":"more","previous_response_id":"`+id+`"}`); status != 200 || h.Get(headerWorker) != fmt.Sprint(k.at["responses/"+id]) {
				t.Errorf("after %s: %d %s from worker %s", id, status, data, h.Get(headerWorker))
			}
		}
	}
	if status, data := l.do("GET", "/v1/responses/nobodys"); status != 404 || !strings.Contains(data, `"not_found"`) || len(k.take("GET /v1/responses/nobodys")) != 3 {
		t.Errorf("nobody has it: %d %s", status, data)
	}
	for _, sick := range []int{500, 429, 401} {
		k.sicken(sick)
		if status, data := l.do("GET", "/v1/responses/nobodys"); status != 502 || !strings.Contains(data, `"engine_unreachable"`) {
			t.Errorf("one cannot say: %d %s", status, data)
		}
		if status, data, _ := l.post("/v1/responses", `{"model":"org/model","input":"x","previous_response_id":"nobodys"}`); status != 502 || !strings.Contains(data, `"engine_unreachable"`) {
			t.Errorf("what goes on with it, where one cannot say: %d %s", status, data)
		}
		for id, at := range k.at {
			l.forget()
			for range 2 {
				if status, data := l.do("GET", "/v1/"+id); status != 200 || !strings.Contains(data, fmt.Sprintf(`"engine":%d}`, at)) {
					t.Errorf("one answers %d where it has nothing: %d %s", sick, status, data)
				}
			}
		}
	}
	for where, least := range map[string]string{keptKnown: "0", keptAsked: "0", keptNot: "1"} {
		if n := l.metric(`kvatlas_router_kept_total{found="` + where + `"}`); n == "" || n == least {
			t.Errorf("%s of them were %s", n, where)
		}
	}
	l.idle()
}

// Names that nobody has are asked for by few at once: each costs all engines a request.
func TestUnknownNamesAreAskedForByFew(t *testing.T) {
	l, k := newKeepers(t)
	l.proxy.cfg.AskTimeout = 10 * time.Millisecond
	for range cap(l.proxy.asking) {
		l.proxy.asking <- struct{}{}
	}
	const request = "GET /v1/responses/nobodys"
	status, data := l.do("GET", "/v1/responses/nobodys")
	if asked := k.take(request); status != 502 || !strings.Contains(data, "engine_unreachable") || len(asked) > 0 {
		t.Errorf("while enough ask: %d %s, asked %q", status, data, asked)
	}
	for range cap(l.proxy.asking) {
		<-l.proxy.asking
	}
	l.proxy.cfg.AskTimeout = patience
	status, _ = l.do("GET", "/v1/responses/nobodys")
	if asked := k.take(request); status != 404 || len(asked) != 3 || len(l.proxy.asking) > 0 {
		t.Errorf("then: %d, asked %q, %d still ask", status, asked, len(l.proxy.asking))
	}
}

// Files and batches are where they were put: a batch goes to its file's engine, and a
// list is that of all engines.
func TestFilesAndBatches(t *testing.T) {
	l, k := newKeepers(t)
	for range 6 {
		form := "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\n{}\r\n--b--\r\n"
		if status, data, _ := l.post("/v1/files", form, "Content-Type", "multipart/form-data; boundary=b", "X-Session-Id", "s"); status != 200 {
			t.Fatalf("%d %s", status, data)
		}
	}
	for i := range 6 {
		id := fmt.Sprintf("files_%d", i+1)
		if status, data := l.do("GET", "/v1/files/"+id+"/content"); status != 200 || !strings.Contains(data, fmt.Sprintf(`"engine":%d}`, k.at["files/"+id])) {
			t.Errorf("%d %s", status, data)
		}
		if i == 3 {
			l.forget()
		}
		status, data, h := l.post("/v1/batches", `{"input_file_id":"`+id+`","endpoint":"/v1/chat/completions"}`)
		if status != 200 || h.Get(headerWorker) != fmt.Sprint(k.at["files/"+id]) {
			t.Errorf("a batch of %s: %d %s from worker %s", id, status, data, h.Get(headerWorker))
		}
	}
	for kind, n := range map[string]int{"files": 6, "batches": 6} {
		if status, data := l.do("GET", "/v1/"+kind); status != 200 || strings.Count(data, `"id":"`+kind) != n || !strings.Contains(data, `"object":"list"`) {
			t.Errorf("%d %s", status, data)
		}
	}
	if status, data := l.do("POST", "/v1/batches/batches_7/cancel"); status != 200 && status != 404 {
		t.Errorf("%d %s", status, data)
	}
	l.idle()
}

// The name of an answer is the first that there is, once it is whole.
func TestFirstID(t *testing.T) {
	for head, want := range map[string]string{
		`{"id":"a"`: "a", `{"object":"x", "id" : "b\u0063", "x":{"id":"d"}}`: "bc", `{"id":"half`: "", `{"id":`: "", `{"id":5,"r":{"id":"e"}}`: "e", `{"text":"\"id\":\"no\""`: "",
		`{"x":"id","y":1}`: "", "data: {\"response\":{\"id\":\"f\"": "f",
	} {
		if got := firstID([]byte(head)); got != want {
			t.Errorf("%s: %q, want %q", head, got, want)
		}
	}
}

// What is kept is asked of the engines of the model that a header names, by any of its names.
func TestWhatIsKeptByAModelsNames(t *testing.T) {
	l, k := newKeepers(t)
	for name, want := range map[string]int{modelName: 200, "lora": 200, "nobodys": 404} {
		for _, path := range []string{"/v1/responses/x", "/v1/files"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, l.front.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set(headerModel, name)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			data, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			asked := len(k.take("GET " + path))
			if found := !strings.Contains(string(data), "model_not_found"); err != nil || found != (want == 200) || found != (asked == 3) {
				t.Errorf("%s of %s: %d %s %v, %d engines were asked", path, name, resp.StatusCode, data, err, asked)
			}
		}
	}
}
