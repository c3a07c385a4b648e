package proxy

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
)

// A refusal has the form of the API that is asked, also of who may not ask, and is counted; a path that is none
// of inference, or is asked by another method, is said to be that, and not the token to be for less.
func TestRefusalsAreOfTheAPI(t *testing.T) {
	s, seen := spied(t, 1, nil)
	s.proxy = func(p *Config) { p.Access = access(t, `[{token: reader-0123456789abcdef, role: reader}]`) }
	l := newLab(t, s)
	for request, want := range map[string]string{
		"POST /v1/chat/completions":          "401 invalid_request_error unauthenticated",
		"POST /v1/messages":                  "401 error/authentication_error unauthenticated",
		"POST /v1/select":                    "401 Authorization unauthenticated",
		"POST /v1/nothing, gateway":          "404 invalid_request_error unknown_route",
		"reader POST /v1/select_and_reserve": "403 Authorization forbidden",
		"reader POST /chat/completions":      "403 invalid_request_error operators_only",
		"reader GET /v1/chat/completions":    "405 invalid_request_error method_not_allowed",
		"reader GET /v1/messages":            "405 error/invalid_request_error method_not_allowed",
		"reader POST /v1/embeddings":         "404 invalid_request_error model_not_found",
		"reader POST /v1/messages":           "404 error/not_found_error model_not_found",
		"reader POST /v1/nothing, gateway":   "404 invalid_request_error unknown_route",
		"reader GET /metrics, gateway":       "404 invalid_request_error unknown_route",
	} {
		rest, known := strings.CutPrefix(request, "reader ")
		rest, gateway := strings.CutSuffix(rest, ", gateway")
		method, path, _ := strings.Cut(rest, " ")
		r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(`{"model":"none","messages":[],"max_tokens":1}`))
		if gateway {
			r = r.WithContext(WithPassage(r.Context(), &Passage{}))
		}
		if known {
			r.Header.Set("Authorization", "Bearer reader-0123456789abcdef")
		}
		w := httptest.NewRecorder()
		l.proxy.ServeHTTP(w, r)
		var said struct {
			Type  string
			Error struct{ Type, Code, Field, Reason, Message string }
		}
		if err := json.Unmarshal(w.Body.Bytes(), &said); err != nil || said.Error.Message == "" {
			t.Fatal(request, err, w.Body)
		}
		of := said.Error.Field + said.Error.Type
		if said.Type != "" {
			of = said.Type + "/" + of
		}
		if got := fmt.Sprint(w.Code, " ", of, " ", said.Error.Reason, said.Error.Code); got != want {
			t.Errorf("%s: %s, want %s: %s", request, got, want, w.Body)
		}
	}
	if got := seen.take(); len(got) != 0 {
		t.Errorf("engines saw %q", got)
	}
	for outcome, want := range map[string]string{"unauthenticated": "3", "forbidden": "1", "operators_only": "1"} {
		if got := l.metric(`kvatlas_router_requests_total{outcome="` + outcome + `"}`); got != want {
			t.Errorf("%s requests are counted as %s, want %s", got, outcome, want)
		}
	}
}
