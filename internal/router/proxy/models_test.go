package proxy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/registry"
)

// A prompt is cached under whatever name of its model it is asked; engines are sent the
// name that they know. An adapter's alias hashes as the adapter. So it is where engines give each other
// KV entries, too.
func TestAliasHashesAsItsModel(t *testing.T) {
	aliases := func(c *fleet.Config) { c.Aliases = map[string]string{"gpt-4o": modelName, "short": "lora"} }
	for name, l := range map[string]*lab{
		"alone": newLab(t, setup{engines: 3, fleet: aliases}),
		"peers": newLab(t, setup{engines: 3, fleet: aliases, proxy: func(c *Config) { c.Trust = nil }, registry: func(_ int, w *registry.Worker) {
			w.Endpoints.Peer = strings.TrimPrefix(w.Endpoints.HTTP, "http://")
		}}),
		mockapi.TransferVLLM:   namedPools(t, mockapi.TransferVLLM, aliases),
		mockapi.TransferSGLang: namedPools(t, mockapi.TransferSGLang, aliases),
	} {
		t.Run(name, func(t *testing.T) { aliasHashesAsItsModel(t, l) })
	}
}

func aliasHashesAsItsModel(t *testing.T, l *lab) {
	ask := func(model, salt string) (string, int) {
		t.Helper()
		body := fmt.Sprintf(`{"cache_salt":%q,"model":%q,"prompt":[1,2,3,4,5,6,7,8,9,10,11,12],"max_tokens":1}`, salt, model)
		status, data, h := l.post("/v1/completions", body)
		if status != 200 {
			t.Fatalf("%s: %d %s", model, status, data)
		}
		l.idle()
		cached := max(usageIn([]byte(data)).cached, 0)
		return cmp.Or(h.Get(headerPrefill), h.Get(headerWorker)), cached
	}
	for i, names := range [][2]string{{modelName, "gpt-4o"}, {"gpt-4o", modelName}, {"lora", "short"}, {"short", "lora"}} {
		salt := fmt.Sprint("salt", i)
		first, _ := ask(names[0], salt)
		for range 4 {
			if at, cached := ask(names[1], salt); at != first || cached < 8 {
				t.Errorf("%s after %s went from worker %s to %s and found %d tokens", names[1], names[0], first, at, cached)
			}
		}
	}
	status, data, _ := l.post("/v1/chat/completions", `{"model":"gpt-4o","messages":[{"role":"user","content":"a chat's tokens are asked for by its model's name, too"}],"max_tokens":1}`)
	if failed := l.metric(`kvatlas_router_tokenize_total{from="failed"}`); status != 200 || failed != "0" {
		t.Errorf("a chat: %d %s, %s texts without tokens", status, data, failed)
	}
	l.idle()
}

// The names that requests may give are listed, and found one by one.
func TestModelsByName(t *testing.T) {
	l := newLab(t, setup{engine: func(_ int, c *mockapi.Config) { c.Loras = []string{"a/b"} },
		fleet: func(c *fleet.Config) { c.Aliases = map[string]string{"gpt-4o": modelName, "nothing": "x"} }})
	if n := l.fleet.AskModels(t.Context(), http.DefaultClient, patience); n != 1 {
		t.Fatalf("%d engines", n)
	}
	for path, want := range map[string]string{
		"/v1/models": `"id":"a/b"`, "/v1/models/" + modelName: `{"id":"org/model","object":"model",`, "/v1/models/org%2Fmodel": `{"id":"org/model",`, "/v1/models/gpt-4o": `{"id":"gpt-4o",`,
		"/v1/models/a/b": `{"id":"a/b",`, "/v1/models/nothing": "model_not_found", "/v1/models/x": "model_not_found",
	} {
		resp, err := http.Get(l.front.URL + path) //nolint:noctx // a test's own server
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || !strings.Contains(string(data), want) || (resp.StatusCode == 200) == strings.Contains(want, "not_found") {
			t.Errorf("%s: %d %s %v, want %s", path, resp.StatusCode, data, err, want)
		}
	}
}

// A field of a form is found wherever it is, and where nothing hides it.
func TestFormField(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		want, n := "", 0
		for i := range rng.IntN(5) {
			var err error
			switch rng.IntN(3) {
			case 0:
				if n++; n == 1 {
					want = strings.Repeat("m\r\n-", rng.IntN(4))
				}
				err = w.WriteField("model", want)
			case 1:
				err = w.WriteField("other", "model")
			default:
				part, perr := w.CreateFormFile("file", fmt.Sprint(i))
				_, werr := part.Write([]byte("\r\n--" + w.Boundary()[1:] + "\r\nContent-Disposition: form-data; name=model\r\n\r\nevil"))
				err = errors.Join(perr, werr)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		data := b.Bytes()
		if rng.IntN(2) == 0 {
			data = append([]byte("a preamble\r\n"), data...)
		}
		value, at, err := formField(w.FormDataContentType(), data, "model")
		switch {
		case b.Len() < 70: // no part at all
		case n > 1 && err == nil, n < 2 && err != nil, n == 1 && (string(value) != want || string(data[at.begin:at.end]) != want), n == 0 && value != nil:
			t.Fatalf("%d fields: %q at %v, %v; want %q of\n%s", n, value, at, err, want, data)
		}
	}
}

// Whatever claims to be a form, what is found is a part of it.
func FuzzFormField(f *testing.F) {
	const kind = "multipart/form-data; boundary=b"
	f.Add("--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--\r\n")
	f.Add("--b\r\n\r\n\r\n--b\r\n\r\n--b")
	f.Add("x\r\n--b \t\r\ncontent-disposition:form-data;name=model\r\n\r\n\r\n--b--")
	f.Fuzz(func(t *testing.T, text string) {
		value, at, err := formField(kind, []byte(text), "model")
		if err == nil && value != nil && (at.begin > at.end || at.end > len(text) || text[at.begin:at.end] != string(value)) {
			t.Fatalf("%q at %v of %q", value, at, text)
		}
		read := multipart.NewReader(strings.NewReader(text), "b")
		for {
			part, perr := read.NextRawPart()
			if perr != nil {
				return
			}
			got, perr := io.ReadAll(part)
			if perr != nil {
				return
			}
			if part.FormName() == "model" && err == nil && at.end > 0 && string(got) != string(value) {
				t.Fatalf("%q, net/http reads %q of %q", value, got, text)
			}
		}
	})
}

// Of several models the form's field chooses, behind a file of any length; an alias is
// replaced, and the rest is as it was sent.
func TestAudioGoesByItsField(t *testing.T) {
	s, seen := spied(t, 1, nil)
	s.fleet = func(c *fleet.Config) { c.Aliases = map[string]string{"whisper-1": modelName} }
	l := newLab(t, s)
	file := strings.Repeat("\r\n-- sound \x00", 40_000)
	form := func(model ...string) (kind, body string) {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		part, err := w.CreateFormFile("file", "a.wav")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(part, file)
		for _, m := range model {
			_ = w.WriteField("model", m)
		}
		_ = w.WriteField("language", "de")
		_ = w.Close()
		return w.FormDataContentType(), b.String()
	}
	for _, c := range []struct {
		model, sent []string
		want        int
	}{{[]string{modelName}, []string{modelName}, 200}, {[]string{"whisper-1"}, []string{modelName}, 200}, {[]string{"other"}, nil, 404}, {nil, []string{}, 200}, {[]string{"a", "b"}, nil, 400}} {
		kind, body := form(c.model...)
		status, data, _ := l.post("/v1/audio/transcriptions", body, "Content-Type", kind)
		if status != c.want {
			t.Errorf("%q: %d %s", c.model, status, data)
		}
		got := seen.take()
		if c.sent == nil {
			if len(got) != 0 {
				t.Errorf("%q reached an engine", c.model)
			}
			continue
		}
		_, boundary, _ := strings.Cut(kind, "boundary=")
		want := "0 POST /v1/audio/transcriptions " + body
		if len(c.model) == 1 {
			want = strings.Replace(want, "\r\n\r\n"+c.model[0]+"\r\n--"+boundary, "\r\n\r\n"+c.sent[0]+"\r\n--"+boundary, 1)
		}
		if len(got) != 1 || got[0] != strings.TrimSpace(want) {
			t.Errorf("%q: the engine saw another form", c.model)
		}
	}
	if status, data, _ := l.post("/v1/audio/translations", "--x", "Content-Type", "multipart/form-data; boundary=b"); status != 400 || !strings.Contains(data, "malformed_form") {
		t.Errorf("%d %s", status, data)
	}
	l.idle()
	if s := l.proxy.spool.Stats(); s.Memory != 0 || s.Files != 0 {
		t.Errorf("%+v is held", s)
	}
}

// Who asks where a request should go is told where the router itself would send it, by whatever name: of the
// model, an alias, a name that some engines serve it by, or an adapter that some have.
func TestSelectionKnowsNames(t *testing.T) {
	l := newLab(t, setup{engines: 4, fleet: func(c *fleet.Config) {
		c.Aliases = map[string]string{"gpt-4o": modelName, "short": "lora", "one": "solo", "also": "called"}
	}, engine: func(_ int, c *mockapi.Config) { // it takes no other names
		c.Loras = append(c.Loras, "solo", "called", "called-0", "called-1")
	}, registry: func(i int, w *registry.Worker) {
		if i == 2 {
			w.Lora = "solo"
		}
	}})
	for i, e := range l.engines { // some are listed by two engines, some by all
		served := http.NewServeMux()
		list := fmt.Sprintf(`{"data":[{"id":%q},{"id":"called-%d"},{"id":"lora","parent":%q}]}`, modelName, i%2, modelName)
		if i == 3 {
			list = strings.Replace(list, "called-1", `called-1"},{"id":"called`, 1)
		}
		if i == 2 {
			list = strings.Replace(list, "]}", `,{"id":"solo","parent":"m"}]}`, 1)
		}
		served.HandleFunc("/v1/models", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, list) })
		served.Handle("/", e.http.Config.Handler)
		e.http.Config.Handler = served
	}
	if n := l.fleet.AskModels(t.Context(), http.DefaultClient, patience); n != 4 {
		t.Fatalf("%d engines named their models", n)
	}
	type where struct {
		Worker  uint64 `json:"worker_id"`
		Model   string `json:"model_name"`
		Lora    string `json:"lora_name"`
		Overlap struct {
			Longest int `json:"longest_matched"`
		}
		Explain []struct {
			Worker uint64 `json:"worker_id"`
			Left   string `json:"left_out"`
		}
	}
	const tokens = `[1,2,3,4,5,6,7,8,9,10,11,12]`
	for _, c := range []struct {
		name, lora string
		may        []uint64 // which engines
	}{
		{modelName, "", []uint64{0, 1, 2, 3}}, {"gpt-4o", "", []uint64{0, 1, 2, 3}}, {"lora", "lora", []uint64{0, 1, 2, 3}}, {"short", "lora", []uint64{0, 1, 2, 3}},
		{"solo", "solo", []uint64{2}}, {"one", "solo", []uint64{2}}, {"called-0", "", []uint64{0, 2}}, {"called-1", "", []uint64{1, 3}}, {"also", "", []uint64{3}},
	} {
		selects := func(path, fields string) (a where) {
			t.Helper()
			status, data, _ := l.post(path, fmt.Sprintf(`{"token_ids":%s,"cache_salt":%q,%s}`, tokens, c.name, fields))
			if err := json.Unmarshal([]byte(data), &a); err != nil || status != 200 {
				t.Fatalf("%s %s: %d %s", path, fields, status, data)
			}
			return a
		}
		before := selects("/v1/select", fmt.Sprintf(`"model_name":%q,"explain":true`, c.name))
		if before.Model != modelName || before.Lora != c.lora || !slices.Contains(c.may, before.Worker) || before.Overlap.Longest != 0 {
			t.Errorf("%s: %+v", c.name, before)
		}
		for _, r := range before.Explain {
			if (r.Left == "") != slices.Contains(c.may, r.Worker) {
				t.Errorf("%s: worker %d is left out: %q", c.name, r.Worker, r.Left)
			}
		}
		status, data, h := l.post("/v1/completions", fmt.Sprintf(`{"cache_salt":%q,"model":%q,"prompt":%s,"max_tokens":1}`, c.name, c.name, tokens))
		if status != 200 || !slices.ContainsFunc(c.may, func(id uint64) bool { return fmt.Sprint(id) == h.Get(headerWorker) }) {
			t.Errorf("%s: %d %s at %q", c.name, status, data, h.Get(headerWorker))
		}
		if strings.HasPrefix(c.name, "called") || c.name == "also" {
			continue // the mock engines take those for adapters
		}
		l.idle()
		forms := []string{fmt.Sprintf(`"model_name":%q`, c.name)}
		if c.lora != "" {
			forms = append(forms, fmt.Sprintf(`"model_name":%q,"lora_name":%q`, modelName, c.name), fmt.Sprintf(`"model_name":"gpt-4o","lora_name":%q`, c.lora))
		}
		for _, form := range forms {
			if a := selects("/v1/select", form); fmt.Sprint(a.Worker) != h.Get(headerWorker) || a.Overlap.Longest < 8 || a.Lora != c.lora {
				t.Errorf("%s after %s: %+v", form, h.Get(headerWorker), a)
			}
		}
	}
	for name, want := range map[string]int{modelName: 4, "gpt-4o": 4, "one": 1, "called-0": 2, "nobody": 0} {
		var loads []any
		_, text := l.do("GET", "/v1/loads?model_name="+name)
		if err := json.Unmarshal([]byte(text), &loads); err != nil || len(loads) != want {
			t.Errorf("the loads of %s: %v %v", name, loads, err)
		}
		var kept struct{ Decisions []any }
		_, text = l.do("GET", "/v1/decisions?model_name="+name)
		if err := json.Unmarshal([]byte(text), &kept); err != nil || (len(kept.Decisions) > 0) != (want > 0) {
			t.Errorf("the decisions of %s: %d %v", name, len(kept.Decisions), err)
		}
	}
	if status, data, _ := l.post("/busy_threshold", `{"model":"gpt-4o","active_decode_blocks_threshold":0.5}`); status != 200 || l.model().Router.Thresholds().DecodeFraction == nil {
		t.Errorf("a threshold by an alias: %d %s", status, data)
	}
	if status, data, _ := l.post("/v1/reservations", `{"selection_id":"a","model_name":"gpt-4o","worker_id":1,"isl_tokens":4}`); status != 201 {
		t.Errorf("a reservation by an alias: %d %s", status, data)
	}
	l.model().Router.Free("a")
	for _, bad := range []string{`"model_name":"solo","lora_name":"lora"`, `"model_name":"nobody"`} {
		if status, data, _ := l.post("/v1/select", `{"token_ids":[1],`+bad+`}`); status != 400 && status != 404 {
			t.Errorf("%s: %d %s", bad, status, data)
		}
	}
}
