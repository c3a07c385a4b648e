package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/chat/api"
	"github.com/kvatlas/kvatlas/internal/router/tokens"
	"github.com/kvatlas/kvatlas/internal/testing/tokentest"
)

// What is ranked for a query goes where its query was, as the model's engines make prompts of both.
// Where the model's files do not tell, it goes by load.
func TestScoresAreRouted(t *testing.T) {
	t.Parallel()
	for _, rule := range []api.ScoreRule{api.ScoreApart, api.ScoreJoined, api.ScoreTemplate, ""} {
		t.Run(string(rule), func(t *testing.T) {
			t.Parallel() // it waits, mostly
			files := tokentest.Files(tokentest.Template)
			files["kvatlas.json"] = &fstest.MapFile{Data: []byte(fmt.Sprintf(`{"score_prompts":%q}`, rule))}
			dir := t.TempDir()
			writeFiles(t, filepath.Join(dir, modelName), files)
			own, err := mockapi.LoadTokenizer(files, "", "", "")
			if err != nil {
				t.Fatal(err)
			}
			l := newLab(t, setup{engines: 4,
				engine: func(_ int, c *mockapi.Config) { c.Tokenizer, c.Scores = own, rule },
				proxy: func(c *Config) {
					if c.Tokenizers.Dirs, err = tokens.NewDirs([]string{dir}, tokens.Options{}); err != nil {
						t.Fatal(err)
					}
				}}).asking()
			ctx, cancel := context.WithCancel(context.Background())
			var work sync.WaitGroup
			work.Go(func() { l.proxy.FollowTokens(ctx) })
			t.Cleanup(func() { cancel(); work.Wait() })
			l.states("trusted", "trusted")
			for n, path := range []string{"/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score"} {
				one, two := "query", "documents"
				if strings.HasSuffix(path, "score") {
					one, two = "text_1", "text_2"
				}
				query := strings.Repeat(fmt.Sprint(path, n), 200)
				body := func(docs string) string {
					return fmt.Sprintf(`{"model":"org/model",%q:%q,%q:%s}`, one, query, two, docs)
				}
				status, text, first := l.post(path, body(`["some","more"]`))
				l.idle()
				if rule == "" {
					if l.metric(`kvatlas_router_unread_conversations_total{reason="unsupported"}`) != fmt.Sprint(n+1) {
						t.Errorf("%s: it is not said that the prompt is not known", path)
					}
					continue
				}
				_, _, second := l.post(path, body(`"other"`))
				l.idle()
				if at := first.Get(headerWorker); status != 200 || at == "" || at != second.Get(headerWorker) {
					t.Errorf("%s: %d %.100s: %q, then %q", path, status, text, at, second.Get(headerWorker))
				}
				q := &call{api: apis[path], data: []byte(body(`["a","b"]`))}
				if q.body, err = parseBody(q.data, 1<<20); err != nil {
					t.Fatal(err)
				}
				q.place(1 << 20)
				if !l.proxy.converse(l.model(), q) || q.chat != (rule == api.ScoreTemplate) || q.split || !json.Valid(q.ask()) || q.rest > 20 {
					t.Errorf("%s: %s, a chat %t, and %d tokens more", path, q.ask(), q.chat, q.rest)
				}
			}
			if n := l.metric(`kvatlas_router_tokenize_total{from="process"}`); rule != "" && n != "10" {
				t.Errorf("%s prompts were tokenized in the process", n)
			}
		})
	}
}
