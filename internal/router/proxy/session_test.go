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

// A session's header may have the name of a credential: where clients give tokens it names sessions all the same, and engines do not get it.
func TestSessionsByCredentials(t *testing.T) {
	for _, header := range []string{"X-Session-Id", "x-session-token"} {
		l := sessionLab(t, func(c *Config) {
			c.SessionHeader, c.SessionHarness, c.SessionPrefix = header, false, false
			c.Access = access(t, "- {token: reader-a-0123456789, role: reader}\n- {token: reader-b-0123456789, role: reader}")
		})
		of := func(id string) func(int) (string, []string) {
			return func(int) (string, []string) {
				return fmt.Sprintf(chatBody, ""), []string{"Authorization", "Bearer reader-" + id + "-0123456789", header, "Bearer reader-" + id + "-0123456789"}
			}
		}
		if !together(t, l, of("a"), of("b")) {
			t.Errorf("%s: the session moves", header)
		}
		for _, e := range l.engines {
			for len(e.seen) > 0 {
				if h := <-e.seen; header != "X-Session-Id" && h.Get(header) != "" {
					t.Errorf("%s: an engine gets it", header)
				}
			}
		}
	}
}

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
	member := func(json string) func(string) func(int) (string, []string) {
		return func(id string) func(int) (string, []string) {
			return func(turn int) (string, []string) {
				return fmt.Sprintf(chatBody, strings.NewReplacer("ID", id, "TURN", fmt.Sprint(turn)).Replace(json)+","), nil
			}
		}
	}
	for json, stays := range map[string]bool{
		`"prompt_cache_key":"ID","metadata":{"user_id":"u","turn":"TURN"}`:                   true,
		`"metadata":{"user_id":"u_session_TURN"},"prompt_cache_key":"ID"`:                    true,
		`"metadata":{"turn":"TURN","user_id":"u_account__session_ID"}`:                       true,
		`"metadata":{"user_id":"{\"device_id\":\"d\",\"session_id\":\"ID\"}","turn":"TURN"}`: true,
		`"metadata":{"user_id":"ID","about":"a session"}`:                                    false,
		`"metadata":{"user_id":"obsession ID"}`:                                              false,
		`"metadata":{"user_id":["u_session_ID"]}`:                                            false,
		`"metadata":["user_id","u_session_ID"]`:                                              false,
		`"metadata":null,"prompt_cache_key":["ID"]`:                                          false,
		`"prompt_cache_key":"ID","prompt_cache_key":""`:                                      false,
	} {
		if of := member(json); together(t, sessionLab(t, func(*Config) {}), of("a"), of("b")) != stays {
			t.Errorf("%s: stays %t, want %t", json, !stays, stays)
		}
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

// TestSessionsOfTenants: what one tenant calls a session, or says, says nothing of another one's; and who
// has many sessions takes no room from those who have few.
func TestSessionsOfTenants(t *testing.T) {
	for name, member := range map[string]string{"header": "", "prompt_cache_key": `"prompt_cache_key":"s",`} {
		of := func(tenant string) func(int) (string, []string) {
			return func(int) (string, []string) {
				h := []string{headerTenant, tenant}
				if member == "" {
					h = append(h, "X-Session-Id", "s")
				}
				return fmt.Sprintf(chatBody, member), h
			}
		}
		if !together(t, sessionLab(t, func(*Config) {}), of("a"), of("b")) {
			t.Errorf("%s: another tenant's requests go where this one's session is", name)
		}
	}
	l := sessionLab(t, func(c *Config) { c.MaxSessions = 4 })
	ask := func(tenant, session string) string {
		_, _, h := l.post("/v1/chat/completions", fmt.Sprintf(chatBody, ""), headerTenant, tenant, "X-Session-Id", session)
		return h.Get(headerWorker)
	}
	first := ask("a", "s")
	for i := range 6 { // so that the turn is another worker's
		ask("b", fmt.Sprint(i))
	}
	if ask("a", "s") != first {
		t.Error("another tenant's sessions take the room of this one's")
	}

	said := func(turn int) string { // all of them begin alike
		return fmt.Sprintf(`{"model":"org/model","max_tokens":1,"messages":[{"role":"user","content":"hello"}%s]}`, strings.Repeat(`,{"role":"user","content":"more"}`, turn))
	}
	l = sessionLab(t, func(*Config) {})
	_, _, h := l.post("/v1/chat/completions", said(0), headerTenant, "a")
	for range 3 {
		if _, _, next := l.post("/v1/chat/completions", said(1), headerTenant, "b"); next.Get(headerWorker) == h.Get(headerWorker) {
			t.Error("a conversation goes on with another tenant's")
		}
	}
}
