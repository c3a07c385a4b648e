package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/route/account"
)

// No route tells a token, a text or a hash of a prompt, nor of any block of it: neither the
// content's, nor the engine's, nor the sequence's; not of what is held, of what is routed, or
// of what is asked for.
func TestNothingOfAPromptIsShown(t *testing.T) {
	var tokens []uint32
	for i := range uint32(16) {
		tokens = append(tokens, 3_141_592_000+i)
	}
	local, err := blockhash.LocalHashes(nil, tokens, 4, blockhash.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, nil)
	f.store(ownSpace, ownWorker, local[:3]...)
	f.chat(ownSpace, "asked", local, 12)
	secrets := []string{"what is said"}
	for _, n := range append(append(append([]uint64{}, local...), blockhash.SequenceHashes(nil, local)...), engineHashes(ownWorker, local)...) {
		secrets = append(secrets, strconv.FormatUint(n, 10), strconv.FormatInt(int64(n), 10), strconv.FormatUint(n, 16), fmt.Sprintf("%016x", n))
	}
	for _, n := range tokens {
		secrets = append(secrets, strconv.Itoa(int(n)))
	}
	asJSON := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	node, id := f.first(ownSpace).ID, f.cfg.Decisions.Find(account.Query{})[0].ID
	asked := map[string][]string{ // by the routes' paths
		"events": {""}, "worker": {"?id=5"}, "prefixes": {"", "?node=" + node}, "prefixes/holders": {"?node=" + node}, "decisions": {""}, "decisions/": {id},
		"streams": {""}, "settings": {""}, pathDocument: {""},
	}
	finds := []string{
		`{"model":"m","token_ids":` + asJSON(tokens) + `}`, `{"model":"m","block_hashes":` + asJSON(local) + `}`, `{"model":"m","text":"what is said"}`,
		`{"model":"m","token_ids":["what is said"]}`, `{"model":"m","token_ids":[3141592000,-1]}`, `{"model":"m","block_hashes":[` + strconv.FormatUint(local[0], 10) + `,{}]}`,
		`{"model":"m","token_ids":` + asJSON(tokens) + `,"what is said":1}`, `{"model":"m","token_ids":[1],"text":"what is said"}`, `"what is said`,
	}
	look := func(what, text string) {
		for _, s := range secrets {
			if len(s) > 6 && strings.Contains(text, s) {
				t.Errorf("%s tells %s: %.500s", what, s, text)
			}
		}
	}
	for _, e := range endpoints() {
		if e.post {
			for _, body := range finds {
				look(e.path, string(f.ask(nil, secure.Operator, "POST", "api/"+e.path, body).Body))
			}
			continue
		}
		rests, ok := asked[e.path]
		if !ok {
			t.Errorf("%s is not asked", e.path)
		}
		for _, rest := range rests {
			a := f.get("api/" + e.path + rest)
			if a.Status != http.StatusOK {
				t.Errorf("%s%s: %d %s", e.path, rest, a.Status, a.Body)
			}
			text := string(a.Body)
			if a.Stream != nil {
				text = strings.Join(frames(t, a.Stream, 2), "")
				a.Stream.Close()
			}
			look(e.path, text)
		}
	}
}

// What another site's page can send without asking changes nothing, and its answer is not for
// that page; what it must ask for first it does not get.
func TestOtherSites(t *testing.T) {
	f := filled(t)
	s := httptest.NewServer(f.Handler(nil, "/"))
	defer s.Close()
	do := func(method, path, body string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Origin", "https://elsewhere.example")
		req.Header.Set("Sec-Fetch-Site", "cross-site")
		req.Header.Set("Content-Type", "text/plain")
		req.Header.Set("Access-Control-Request-Method", "POST")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		for name := range resp.Header {
			if strings.HasPrefix(name, "Access-Control-") {
				t.Errorf("%s %s: %s is answered to another site", method, path, name)
			}
		}
		if resp.Header.Get("Cross-Origin-Resource-Policy") != "same-origin" || !strings.Contains(resp.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'") {
			t.Errorf("%s %s: %v", method, path, resp.Header)
		}
		return resp
	}
	before := string(f.get("api/worker?id=5").Body)
	for _, e := range endpoints() {
		if e.path == "events" {
			continue
		}
		for _, method := range []string{"GET", "POST", "OPTIONS", "PUT", "PATCH", "DELETE"} {
			resp := do(method, "/api/"+e.path, `{"model":"m","block_hashes":[11]}`)
			if reads := method == "GET" && !e.post || method == "POST" && e.post; !reads && resp.StatusCode < 400 {
				t.Errorf("%s %s: %s", method, e.path, resp.Status)
			}
		}
	}
	if resp := do("OPTIONS", "/", ""); resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("OPTIONS /: %s", resp.Status)
	}
	if after := string(f.get("api/worker?id=5").Body); len(after) != len(before) {
		t.Errorf("the worker was %s, is %s", before, after)
	}
}
