package proxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route/account"
)

// An engine whose model has sliding windows besides finds half of what is indexed: once it has
// said so for a while, half is expected; the receipt, decisions and /v1/select call it an estimate.
// Of another model none does: there the engine contradicts the index, and is believed.
func TestEstimates(t *testing.T) {
	for _, hybrid := range []bool{true, false} {
		l := newLab(t, setup{})
		body := promptBody(false, 1, 80, 1)
		if status, text, _ := l.post("/v1/completions", body); status != 200 {
			t.Fatalf("%d %s", status, text)
		}
		l.idle()
		half := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprint(w, `{"choices":[{"text":"a"}],"usage":{"prompt_tokens":80,"prompt_tokens_details":{"cached_tokens":40}}}`)
		}))
		t.Cleanup(half.Close)
		w := registry.Worker{ID: 0, Model: modelName, BlockSize: blockSize, Transport: registry.JetStream, Hybrid: hybrid, Endpoints: registry.Endpoints{HTTP: half.URL}}
		if hybrid {
			l.set.Lookup(space).MarkHybrid() // as a replica does by the registration
		}
		if err := l.fleet.SetWorker(w, false); err != nil {
			t.Fatal(err)
		}
		var header http.Header
		for range 12 {
			var status int
			var text string
			if status, text, header = l.post("/v1/completions", body); status != 200 {
				t.Fatalf("%d %s", status, text)
			}
			l.idle()
		}
		if got := header.Get(headerReceipt); strings.Contains(got, ", estimated") != hybrid || !strings.Contains(got, " selected=40,") {
			t.Errorf("hybrid %v: receipt %s", hybrid, got)
		}
		d := l.proxy.cfg.Decisions.Find(account.Query{Limit: 1})
		if len(d) != 1 || d[0].Estimated != hybrid || *d[0].Selected != 40 || (d[0].Miss == "") != hybrid {
			t.Errorf("hybrid %v: %+v", hybrid, d)
		}
		if n := l.metric(`kvatlas_router_contradictions_total{model="org/model",block_size="4",group=""}`); (n == "0") != hybrid {
			t.Errorf("hybrid %v: contradicted %q times", hybrid, n)
		}
		if text, err := json.Marshal(d); err != nil || strings.Contains(string(text), `"estimated":true`) != hybrid {
			t.Errorf("hybrid %v: %s %v", hybrid, text, err)
		}
	}
}
