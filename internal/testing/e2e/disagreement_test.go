package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/testing/tokentest"
)

// An engine agrees with the model's files until somebody says a word that its template writes
// in another way: a comparison of what is asked finds that, and from then on tokens come from engines, and
// none go to them, until the engine is another and an operator says so. The word is in no log.
func TestDisagreementIsFoundBySampling(t *testing.T) {
	t.Parallel()
	home, dir := t.TempDir(), t.TempDir()
	for name, f := range tokentest.Files(tokentest.Template) {
		if err := os.WriteFile(filepath.Join(dir, name), f.Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	other := filepath.Join(home, "other.jinja")
	const word = "shibboleth"
	if err := os.WriteFile(other, []byte(`{% if '`+word+`' in messages[-1].content %}!{% endif %}`+tokentest.Template), 0o600); err != nil {
		t.Fatal(err)
	}
	router, url := startRouter(t, home, "--tokenizers=m="+dir, "--tokenizer-sample=1", "--tokenizer-sample-rate=1000", "--pass-tokens", "--models-every=50ms")
	fleet := func(flags ...string) *process {
		return start(t, home, "kvmocker", append([]string{"--data-dir=" + filepath.Join(home, "data"), "--http", "--http-port=0", "--workers=2", "--speed=0",
			"--model=m", "--model-files=" + dir}, flags...)...)
	}
	state := func(texts, chats string, meanwhile ...func()) (data string) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			for _, do := range meanwhile {
				do()
			}
			text, err := get(t.Context(), url+"/v1/tokenizers")
			if data = string(text); err != nil || !strings.Contains(data, `"texts":"`+texts+`"`) || !strings.Contains(data, `"chats":"`+chats+`"`) {
				return fmt.Errorf("%s %v", data, err)
			}
			return nil
		})
		return data
	}
	metrics := func(name string, label ...string) float64 {
		t.Helper()
		text, err := get(t.Context(), url+"/metrics")
		if err != nil {
			t.Fatal(err)
		}
		return sum(text, name, label...)
	}
	chat := func(said string) (prompt int) {
		t.Helper()
		status, data, _ := ask(url+"/v1/chat/completions", `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"`+said+`"}]}`)
		var answer struct {
			Usage struct {
				Prompt int `json:"prompt_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(data), &answer); err != nil || status != http.StatusOK {
			t.Fatalf("%d %s", status, data)
		}
		return answer.Usage.Prompt
	}
	const passed, made = "kvatlas_router_prompts_as_tokens_total", `kvatlas_router_tokenize_total`
	differing := fleet("--engine-chat-template=" + other)
	state("trusted", "trusted")
	eventually(t, time.Minute, func() error { // which engines they are is asked every 50 ms
		chat("the in")
		if metrics(passed) == 0 {
			return fmt.Errorf("no prompt went as tokens")
		}
		return nil
	})
	// The first of these can already be compared before it is sent. And more than one: a comparison for which a
	// loaded machine's engine takes too long is no word.
	text := state("disagrees", "disagrees", func() { chat(word) })
	_, counts, _ := strings.Cut(text, `"ours":`)
	var ours, theirs int
	if _, err := fmt.Sscanf(counts, `%d,"theirs":%d`, &ours, &theirs); err != nil || theirs != ours+1 || !strings.Contains(text, `"position":`) || strings.Contains(text, word) {
		t.Errorf("%v: %s", err, text)
	}
	before := [2]float64{metrics(passed), metrics(made, `from="process"`)}
	if n := chat(word); n != theirs {
		t.Errorf("the engine computed %d tokens: it was to write one more than %d by its own template", n, ours)
	}
	chat("the in")
	if after := [2]float64{metrics(passed), metrics(made, `from="process"`)}; after != before {
		t.Errorf("%v prompts went as tokens and were tokenized here, then %v", before, after)
	}
	if data, err := get(t.Context(), url+"/readyz?verbose"); err != nil || !strings.Contains(string(data), "makes other tokens") {
		t.Errorf("%s %v", data, err)
	}
	differing.stop()
	fleet()
	eventually(t, time.Minute, func() error {
		if status, text, _ := ask(url+"/v1/tokenizers/retry", "{}"); status != http.StatusOK {
			return fmt.Errorf("%d %s", status, text)
		}
		return nil
	})
	state("trusted", "trusted")
	router.stop()
	if log, err := os.ReadFile(router.stderr); err != nil || strings.Contains(string(log), word) || !strings.Contains(string(log), "position=") {
		t.Errorf("what is logged: %s %v", log, err)
	}
}
