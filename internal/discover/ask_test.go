package discover

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/kvatlas/kvatlas/internal/program/secure"
)

// What an engine says of itself, of each kind and of releases before and behind a change.
func TestWhatEnginesSay(t *testing.T) {
	const models = `{"data":[{"id":"sql","parent":"m"},{"id":"m","parent":null}]}`
	for name, c := range map[string]struct {
		says map[string]string
		want Facts
	}{
		"vLLM": {map[string]string{"/v1/models": models,
			"/metrics": "vllm:num_requests 1\nvllm:cache_config_info{engine=\"0\",block_size=\"32\"} 1\n"}, Facts{"m", 32}},
		"SGLang, before": {map[string]string{"/v1/models": models, "/metrics": "x 1\n", "/get_server_info": `{"page_size":64}`}, Facts{"m", 64}},
		"SGLang, behind": {map[string]string{"/v1/models": models, "/server_info": `{"page_size":64}`}, Facts{"m", 64}},
		"of no kind":     {map[string]string{"/v1/models": models, "/server_info": `{"page_size":-1}`}, Facts{"m", 0}},
	} {
		t.Run(name, func(t *testing.T) {
			engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				text, ok := c.says[r.URL.Path]
				if !ok {
					w.WriteHeader(http.StatusNotFound)
				}
				_, _ = io.WriteString(w, text) // it reads all
			}))
			defer engine.Close()
			var settings secure.EngineSettings
			engines, err := settings.Open(slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			k := asker{http: engine.Client(), engines: engines}
			if got, err := k.ask(t.Context(), Ask{Name: "a", URL: engine.URL}); err != nil || got != c.want {
				t.Errorf("%+v %v, want %+v", got, err, c.want)
			}
		})
	}
}
