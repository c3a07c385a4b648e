package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// Pages of the origins that are named may ask from browsers what needs no operator: these ask before, without a
// token, whether they may, which no engine is troubled with; and they read answers, also what is refused.
func TestPagesOfOtherOrigins(t *testing.T) {
	const chat, page, other, reader = "/v1/chat/completions", "https://chat.example", "https://other.example", "reader-0123456789abcdef"
	for _, c := range []struct {
		origins, method, path, origin, asks, token string
		status                                     int
		allowed                                    string // Access-Control-Allow-Origin
		engine                                     bool   // it is asked
	}{
		{page, "OPTIONS", chat, page, "POST", "", 204, page, false},
		{page, "OPTIONS", chat, other, "POST", "", 401, "", false},
		{page, "OPTIONS", chat, page, "", "", 401, page, false}, // no preflight
		{page, "OPTIONS", "/sleep", page, "POST", "", 401, "", false},
		{page, "POST", chat, page, "", reader, 200, page, true},
		{page, "POST", chat, page, "", "", 401, page, false},
		{page, "POST", chat, other, "", reader, 200, "", true},
		{page, "POST", "/sleep", page, "", reader, 403, "", false},
		{page, "GET", "/v1/models", page, "", reader, 200, page, false},
		{page + " *", "OPTIONS", "/v1/models", other, "GET", "", 204, "*", false},
		{"*", "POST", chat, other, "", reader, 200, "*", true},
		{"", "OPTIONS", chat, page, "POST", "", 401, "", false},
		{"", "POST", chat, page, "", reader, 200, "*", true}, // as the engine has it
	} {
		s, seen := spied(t, 1, nil)
		s.proxy = func(p *Config) {
			p.Access, p.Origins = access(t, "[{token: "+reader+", role: reader}]"), strings.Fields(c.origins)
		}
		l := newLab(t, s)
		req, err := http.NewRequestWithContext(t.Context(), c.method, l.front.URL+c.path, strings.NewReader(`{"model":"`+modelName+`","messages":[]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Origin", c.origin)
		if c.asks != "" {
			req.Header.Set("Access-Control-Request-Method", c.asks)
			req.Header.Set("Access-Control-Request-Headers", "authorization,content-type")
		}
		if c.token != "" {
			req.Header.Set("Authorization", "Bearer "+c.token)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Fatal(err)
		}
		h := resp.Header
		if resp.StatusCode != c.status || h.Get("Access-Control-Allow-Origin") != c.allowed || (len(seen.take()) > 0) != c.engine {
			t.Errorf("%+v: %s, %v", c, resp.Status, h)
		}
		if vary := strings.Contains(fmt.Sprint(h["Vary"]), "Origin"); vary != (c.origins == page) || c.engine && !strings.Contains(fmt.Sprint(h["Vary"]), "Accept") {
			t.Errorf("%+v: Vary %q", c, h["Vary"])
		}
		if got := fmt.Sprint(h.Get("Access-Control-Allow-Methods"), h.Get("Access-Control-Allow-Headers")); c.status == 204 && got != c.asks+"authorization,content-type" {
			t.Errorf("%+v: it may %s", c, got)
		}
	}
	for _, bad := range []string{"chat.example", "https://chat.example/", "https://Chat.example", "https://", "null", "https://a@chat.example"} {
		if CheckOrigins([]string{"*", page, "http://localhost:3000", bad}) == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if err := CheckOrigins([]string{"*", page, "http://localhost:3000"}); err != nil {
		t.Error(err)
	}
}
