package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// tokenizers prints what a router says of models' tokens, and retry has them compared anew.
func TestTokenizers(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch model := r.URL.Query().Get("model_name"); {
		case r.Method == http.MethodGet && r.URL.Path == "/v1/tokenizers":
			_, _ = w.Write([]byte(`{"tokenizers":[{"model_name":"org/model","states":{"texts":"disagrees","chats":"disagrees","detokenized":"trusted"},"workers":3,"compared":2,"bytes":20971520,
				"from":"/models/org/model","difference":{"worker_id":7,"prompts":"chats","position":12,"ours":30,"theirs":31}}]}`))
		case r.Method != http.MethodPost || r.URL.Path != "/v1/tokenizers/retry":
			w.WriteHeader(http.StatusBadRequest)
		case model != "" && model != "org/model":
			http.Error(w, `{"error":{"code":"model_not_found"}}`, http.StatusNotFound)
		default:
			_, _ = w.Write([]byte(`{"models":1}`))
		}
	}))
	defer s.Close()
	for _, f := range []struct {
		args   string
		code   int
		stdout []string
	}{
		{"tokenizers", 0, []string{"org/model", "disagrees", "DETOKENIZED", "trusted", "2 of 3", "20", "worker 7 makes other tokens of chats from position 12 on (31, not 30)"}},
		{"tokenizers --json", 0, []string{`"worker_id":7`, `"position":12`}},
		{"tokenizers retry", 0, []string{"compared anew: 1"}},
		{"tokenizers retry org/model --json", 0, []string{`"models":1`}},
		{"tokenizers retry other", exitUnknown, nil},
		{"tokenizers try", exitUse, nil},
	} {
		code, stdout, stderr := kvctl(t, append([]string{"--router", s.URL}, strings.Fields(f.args)...)...)
		if code != f.code {
			t.Errorf("%s: exit code %d, want %d: %s%s", f.args, code, f.code, stdout, stderr)
		}
		for _, want := range f.stdout {
			if !strings.Contains(stdout, want) {
				t.Errorf("%s: %s, want %q", f.args, stdout, want)
			}
		}
	}
}
