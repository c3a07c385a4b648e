package secure

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/reload"
	"github.com/kvatlas/kvatlas/internal/testing/securetest"
)

// Limits are of the tenant, or of the token's name, or those of all others; they change
// with the file, and a file that is wrong changes nothing.
func TestLimitsOfAccounts(t *testing.T) {
	const list = `
tokens:
- {name: alice, token: alice-0123456789abcdef, role: reader}
- {name: bob, token: bob-0123456789abcdef, role: reader, tenant: acme}
- {name: carol, token: carol-0123456789abcdef, role: reader, tenant: ""}
tenants:
  alice: {requests: 5, tokens: 7, per: 1h, weight: 2, priority: -3}
  acme: {}
`
	path := tokenFile(t, list)
	c := newClock(time.Now())
	a, err := Settings{TokensFile: path}.open(slog.New(slog.DiscardHandler), c.now)
	if err != nil {
		t.Fatal(err)
	}
	of := func(who string) (string, *Limits) {
		t.Helper()
		x, refusal := a.Check([]byte("Bearer "+who+"-0123456789abcdef"), Reader)
		if refusal != Allowed {
			t.Fatal(refusal)
		}
		return x.Account, x.Limits
	}
	if name, l := of("alice"); name != "alice" || l == nil || *l != (Limits{5, 7, time.Hour, 2, -3}) {
		t.Errorf("%s %+v", name, l)
	}
	if name, l := of("bob"); name != "acme" || l == nil || *l != (Limits{Per: time.Minute, Weight: 1}) {
		t.Errorf("%s %+v", name, l)
	}
	if name, l := of("carol"); name != "carol" || l != nil || a.Limits("carol") != nil || a.Limits("acme") == nil {
		t.Errorf("%s %+v", name, l)
	}
	securetest.Replace(t, path, []byte(list+"  '*': {requests: 1}\n"))
	c.advance(2 * reload.LookEvery)
	if _, l := of("carol"); l == nil || l.Requests != 1 || a.Limits("whoever").Requests != 1 {
		t.Errorf("%+v", l)
	}
	for _, bad := range []string{"  x: {requests: -1}", "  x: {per: 1ms}", "  x: {weight: -1}", "  x: {weight: .nan}", "  x: {priority: 101}", "  x:", "  x: {request: 1}", "  x: 5"} {
		if _, err := (Settings{TokensFile: tokenFile(t, list+bad+"\n")}).open(slog.New(slog.DiscardHandler), c.now); err == nil || strings.Contains(err.Error(), "0123456789") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	var none *Access
	if none.Limits("x") != nil || new(Access).Limits("x") != nil {
		t.Error("nobody has limits")
	}
}
