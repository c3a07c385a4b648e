package kvatlas_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/tokentest"
)

// A program makes tokens by a directory's files, sees what it has to ask an engine for, and
// whether the engine makes the same.
func TestTokenizer(t *testing.T) {
	dirs := map[string]*kvatlas.Tokenizer{}
	for _, template := range []string{tokentest.Template, tokentest.Template + "!"} {
		dir := t.TempDir()
		for name, f := range tokentest.Files(template) {
			if err := os.WriteFile(filepath.Join(dir, name), f.Data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		tok, err := kvatlas.LoadTokenizer(dir, 1<<20)
		if err != nil || tok.Memory() < 1<<20 {
			t.Fatal(err)
		}
		dirs[template] = tok
	}
	one, two := dirs[tokentest.Template], dirs[tokentest.Template+"!"]
	as := func(engine *kvatlas.Tokenizer) func(context.Context, bool, []byte) ([]uint32, error) {
		return func(ctx context.Context, chat bool, body []byte) ([]uint32, error) {
			if !strings.Contains(string(body), `"model":"m"`) {
				t.Errorf("%s names no model", body)
			}
			if chat {
				return engine.Chat(ctx, body)
			}
			return engine.Completion(ctx, body)
		}
	}
	if err := one.Prove(t.Context(), "m", as(one)); err != nil {
		t.Error(err)
	}
	if err := one.Prove(t.Context(), "m", as(two)); !errors.Is(err, kvatlas.ErrTokensDiffer) {
		t.Error(err)
	}
	text, err := one.Completion(t.Context(), []byte(`{"prompt":"the"}`))
	if err != nil || len(text) < 2 {
		t.Errorf("%v %v", text, err)
	}
	plain, err := one.Completion(t.Context(), []byte(`{"prompt":"the","add_special_tokens":false}`))
	if err != nil || !slices.Equal(plain, text[1:]) {
		t.Errorf("%v and %v, %v", text, plain, err)
	}
	if _, err := one.Chat(t.Context(), []byte(`{"messages":[],"chat_template":"x"}`)); !errors.Is(err, kvatlas.ErrAskEngine) {
		t.Error(err)
	}
	if _, err := kvatlas.LoadTokenizer(t.TempDir(), 0); err == nil {
		t.Error("no files are a tokenizer")
	}
	var cfg kvatlas.Config
	atlas, err := kvatlas.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer atlas.Close(t.Context()) //nolint:errcheck // nothing is kept
	if _, err := atlas.Tokenizer(t.Context(), event.Space{Model: "m", BlockSize: 16}, 0); err == nil {
		t.Error("nobody has named files")
	}
}
