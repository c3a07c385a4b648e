package proxy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/router/fleet"
)

// together reports whether requests made by one all go to one worker of four, which get them in turns
// else, and those made by other, of another session, to others too.
func together(t *testing.T, l *lab, one, other func(turn int) (body string, header []string)) bool {
	t.Helper()
	where := func(f func(int) (string, []string), turn int) string {
		body, header := f(turn)
		status, data, h := l.post("/v1/chat/completions", body, header...)
		if status != 200 {
			t.Fatalf("%s: %d %s", body, status, data)
		}
		return h.Get(headerWorker)
	}
	first := where(one, 0)
	moved := where(other, 0) == first
	for turn := 1; turn < 4; turn++ {
		moved = where(one, turn) != first || moved
	}
	return !moved
}

func sessionLab(t *testing.T, change func(*Config)) *lab {
	return newLab(t, setup{engines: 4, fleet: func(c *fleet.Config) { c.Route.Mode = "round-robin" }, proxy: func(c *Config) {
		c.Indexed, c.SessionHarness, c.SessionPrefix = false, true, true
		change(c)
	}})
}

const chatBody = `{"model":"org/model","max_tokens":1,%s"messages":[{"role":"user","content":"hello"}]}`

// TestHarnessSessions: requests stay together that agent harnesses name alike, each in its own way.
func TestHarnessSessions(t *testing.T) {
	for name, c := range map[string]struct{ header, member string }{
		"Claude Code":             {header: "X-Claude-Code-Session-Id"},
		"Codex":                   {header: "session-id"},
		"Codex before":            {header: "session_id"},
		"OpenCode":                {header: "x-session-affinity"},
		"Amp":                     {header: "X-Amp-Thread-Id"},
		"prompt_cache_key":        {member: `"prompt_cache_key":"%s",`},
		"metadata of Claude Code": {member: `"metadata":{"user_id":"user_1_account__session_%s"},`},
	} {
		of := func(id string) func(int) (string, []string) {
			return func(int) (string, []string) {
				if c.header != "" {
					return fmt.Sprintf(chatBody, ""), []string{c.header, id}
				}
				return fmt.Sprintf(chatBody, fmt.Sprintf(c.member, id)), nil
			}
		}
		if !together(t, sessionLab(t, func(*Config) {}), of("a"), of("b")) {
			t.Errorf("%s: the session moves", name)
		}
		if together(t, sessionLab(t, func(c *Config) { c.SessionHarness = false }), of("a"), of("b")) {
			t.Errorf("%s: the session stays without being looked for", name)
		}
	}
	user := func(id string) func(int) (string, []string) {
		return func(int) (string, []string) { return fmt.Sprintf(chatBody, `"metadata":{"user_id":"`+id+`"},`), nil }
	}
	if together(t, sessionLab(t, func(*Config) {}), user("a"), user("b")) {
		t.Error("all that one user asks counts as one session")
	}
	long := func(id string) func(int) (string, []string) {
		return func(int) (string, []string) {
			return fmt.Sprintf(chatBody, `"prompt_cache_key":"`+strings.Repeat(id, maxSessionName)+`",`), nil
		}
	}
	if together(t, sessionLab(t, func(*Config) {}), long("a"), long("b")) {
		t.Error("a name of any length is taken")
	}
}

// TestSessionByMessages: a request that goes on with the messages of another one goes to its worker; the
// same messages again are nobody's, nor is what only begins alike.
func TestSessionByMessages(t *testing.T) {
	said := func(who string) func(int) (string, []string) {
		return func(turn int) (string, []string) {
			var b strings.Builder
			for i := range turn {
				fmt.Fprintf(&b, `{"role":"user","content":"%s asks %d"},{"role":"assistant","content":"yes"},`, who, i)
			}
			return fmt.Sprintf(`{"model":"org/model","max_tokens":1,"messages":[{"role":"system","content":"be kind"},%s{"role":"user","content":"%s asks %d"}]}`, b.String(), who, turn), nil
		}
	}
	same := func(int) (string, []string) { return fmt.Sprintf(chatBody, ""), nil }
	l := sessionLab(t, func(*Config) {})
	if !together(t, l, said("a"), said("b")) {
		t.Error("the conversation moves")
	}
	if together(t, l, same, said("c")) {
		t.Error("the same messages again stay")
	}
	if together(t, sessionLab(t, func(c *Config) { c.SessionPrefix = false }), said("a"), said("b")) {
		t.Error("the conversation stays without being looked for")
	}
	many := func(int) (string, []string) {
		return `{"model":"org/model","max_tokens":1,"messages":[` + strings.Repeat(`{"role":"user","content":"x"},`, maxSessionMessages) + `{"role":"user","content":"x"}]}`, nil
	}
	if together(t, l, many, same) {
		t.Error("a conversation of any length is looked at")
	}
}
