package console

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// tenants: where there are tokens the page asks for one, says what is wrong with it, and
// shows a tenant its own group in every view, and nothing else.
func tenants(t *testing.T, f *fleet) {
	const readers, theirs, model = "everything-0123456789abcdef", "acme-0123456789abcdef", "acmes-model"
	tokens, address := filepath.Join(f.home, "tokens"), filepath.Join(f.home, "second-address")
	if err := os.WriteFile(tokens, []byte("tokens:\n- {name: all, token: "+readers+", role: reader}\n- {name: acme, token: "+theirs+", role: reader, tenant: acme}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(f.home, "data")
	start(t, f.dir, f.home, "kvmocker", "--data-dir", data, "--http", "--http-port=0", "--speed=20", "--model", model, "--group=acme", "--first-worker=900", "--workers=1")
	start(t, f.dir, f.home, "kvrouter", "--data-dir", data, "--http-listen=127.0.0.1:0", "--admin-listen=", "--address-file", address, "--tokens-file", tokens, "--discover-every=50ms")
	public := ""
	until(t, "the second router's address", func() error {
		text, err := os.ReadFile(address)
		public = "http://" + strings.TrimSpace(string(text))
		if err == nil && len(text) == 0 {
			err = os.ErrNotExist
		}
		return err
	})
	b := open(t, public)
	give := func(token string) {
		t.Helper()
		b.until("the form", `document.querySelector('#token')`)
		eval[any](b, `void document.querySelector('#token').focus()`)
		b.do(chromedp.KeyEvent(token))
		b.press(kb.Enter, 1)
	}
	b.expecting(func() { // the browser logs answers of 401
		b.do(chromedp.Navigate(public + "/console/"))
		b.until("why it asks", `document.documentElement.dataset.stream === 'denied' && /for readers/.test(document.querySelector('#notice').innerText)`)
		if strings.Contains(eval[string](b, `document.body.innerText`), "No workers") {
			t.Error("that there are no workers is said before anything is known")
		}
		b.picture("token")
		give("wrong-0123456789abcdef")
		b.until("that it is none", `/does not open/.test(document.querySelector('#notice').innerText) && document.querySelector('#token').value === ''`)
		give(readers)
		b.until("the whole fleet", `globalThis.kvatlas.state === 'live' && ['m', `+quote(model)+`].every((m) => document.querySelector('.groups')?.innerText.includes(m))`)
	})
	b.well()
	b.expecting(func() {
		eval[any](b, `void sessionStorage.clear()`)
		b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(public+"/console/#/fleet"))
		give(theirs)
		b.until("the tenant's fleet", `globalThis.kvatlas.state === 'live' && document.querySelector('.groups')?.innerText.includes(`+quote(model)+`)`)
	})
	there := map[string]string{
		"fleet": `document.querySelectorAll('.cells').length === 1`, "prefixes": `document.querySelector('.prefixes select, .prefixes .problem, .prefixes p')`,
		"decisions": `document.querySelector('.decisions')`, "streams": `document.querySelector('.streams section')`,
	}
	for view, is := range there {
		b.follow("#/" + view)
		b.until(view, is)
		if text := eval[string](b, `document.body.textContent`); strings.Contains(text, "onerror") || eval[bool](b, `[...document.querySelectorAll('main td, main option, main .group')].some((n) => /^m( |$)/.test(n.textContent))`) {
			t.Errorf("%s: a tenant sees another's model: %.500s", view, text)
		}
		b.picture("tenant-" + view)
	}
	b.expecting(func() {
		b.follow("#/settings")
		b.until("that settings are not for it", `/operator|for less/.test(document.querySelector('.settings').innerText)`)
		b.picture("tenant-settings")
	})
	for _, route := range []string{"api/worker?id=1", "api/worker?id=50", "api/worker?id=" + fmt.Sprint(loser)} {
		status := 0
		b.expecting(func() {
			status = eval[int](b, `fetch(`+quote(route)+`, {headers: {Authorization: 'Bearer `+theirs+`'}}).then((r) => r.status)`)
		})
		if status != 404 {
			t.Errorf("%s: another's worker is answered with %d", route, status)
		}
	}
	b.well()
}
