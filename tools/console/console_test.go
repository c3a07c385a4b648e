package console

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
)

var views = []string{"fleet", "prefixes", "decisions", "streams", "settings"}

// A router with two fleets of mock engines, and everything that its console shows of them,
// in one browser. One of the models has a name that would do harm as markup.
func TestConsole(t *testing.T) {
	chromium(t)
	f := startFleet(t)
	b := open(t, f.admin)
	b.look(1280, 900, "light")
	step := func(name string, run func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			b.t, f.t = t, t
			run(t)
			b.well()
		})
		if t.Failed() {
			b.picture("failed " + name)
		}
	}

	step("Fleet", func(t *testing.T) {
		b.visit("#/fleet")
		b.until("both models", `document.querySelectorAll('.cells').length === 2`)
		for _, metric := range []string{"load", "hit", "lag", "age", "held"} {
			eval[any](b, `void document.querySelector('.metrics input[value=`+metric+`]').click()`)
			b.until("the scale of "+metric, `document.querySelector('.scale').innerText.trim() !== '' && document.querySelector('.metrics input[value=`+metric+`]').checked`)
		}
		// Each rank is in the table behind the picture, with what it holds.
		eval[any](b, `void [...document.querySelectorAll('.picture summary')].at(-1).click()`)
		b.until("five ranks in the table", `document.querySelectorAll('.picture tbody tr').length === 5`)
		b.until("a value", `/\d/.test(document.querySelector('.picture tbody tr td:last-child').innerText)`)
		// A cell leads to its worker.
		eval[any](b, `{ const c = [...document.querySelectorAll('.group')].find((g) => g.innerText.startsWith('m')).querySelector('.cells'), r = c.getBoundingClientRect();
			c.dispatchEvent(new MouseEvent('click', {clientX: r.left + 12, clientY: r.top + 12, bubbles: true})); void 0 }`)
		b.until("details of worker 1", `document.querySelector('.details:not([hidden]) h2')?.innerText === 'Worker 1' && /blocks/.test(document.querySelector('.details .held')?.innerText ?? '')`)
		if hash := eval[string](b, `location.hash`); hash != "#/fleet?worker=1" {
			t.Errorf("the place is %s", hash)
		}
	})

	step("HostileName", func(t *testing.T) {
		if !strings.Contains(eval[string](b, `document.querySelector('.groups').textContent`), shown) {
			t.Errorf("the model %s is not there by its name", hostile)
		}
		for _, view := range views {
			b.follow("#/" + view)
			b.until(view, `document.querySelector('#views [aria-current]')?.innerText.toLowerCase() === `+quote(view))
			if n := eval[int](b, `document.querySelectorAll('main img').length`); n != 0 || strings.Contains(eval[string](b, `document.title`), "taken") {
				t.Errorf("%s: the model's name is markup: %d images", view, n)
			}
			if view != "settings" {
				b.until("the name in "+view, `document.querySelector('main').textContent.includes(`+quote(`\u{202e}`)+`)`)
			}
			for _, wrong := range eval[[]string](b, turnedAround) {
				t.Errorf("%s: %s", view, wrong)
			}
		}
	})

	step("Prefixes", func(t *testing.T) {
		b.follow("#/prefixes?model=m&block_size=16&group=")
		b.until("a tree", `document.querySelectorAll('[role=treeitem]').length > 0`)
		b.until("a chain that is followed", `document.querySelector('.tree ul [role=treeitem]')`)
		eval[any](b, `void document.querySelector('.tree ul [role=treeitem]').click()`)
		b.until("its holders", `document.querySelectorAll('.holders tbody tr').length > 0`)
		worker := eval[string](b, `document.querySelector('.holders tbody a').innerText`)
		eval[any](b, `void document.querySelector('.holders tbody a').click()`)
		b.until("the holder among the fleet", `document.querySelector('.details:not([hidden]) h2')?.innerText === 'Worker ' + `+quote(strings.Split(worker, ":")[0]))
	})

	step("Find", func(t *testing.T) {
		b.follow("#/prefixes?model=m&block_size=16&group=")
		b.until("the form", `document.querySelector('.find')`)
		eval[any](b, `{ document.querySelector('.find').open = true;
			document.querySelector('#find-what').value = Array.from({length: 40}, (_, i) => i).join(', ');
			document.querySelector('.finder').requestSubmit(); void 0 }`)
		b.until("an answer for each rank", `document.querySelectorAll('.found tbody tr').length >= 1 && /2 blocks/.test(document.querySelector('.found h3').innerText)`)
		if why := eval[string](b, `document.querySelector('.found .why').innerText`); why == "" {
			t.Error("it does not say why a depth ends")
		}
		eval[any](b, `{ document.querySelector('#find-as').value = 'token_ids'; document.querySelector('#find-what').value = 'no numbers'; document.querySelector('.finder').requestSubmit(); void 0 }`)
		b.until("a refusal", `/not numbers/.test(document.querySelector('.found').innerText)`)
	})

	step("Decisions", func(t *testing.T) {
		b.follow("#/decisions")
		b.until("a list", `document.querySelectorAll('.choices li').length > 5`)
		top := eval[string](b, `document.querySelector('.choices a').getAttribute('href')`)
		if err := f.chat("m", "1", "one more, while somebody looks"); err != nil {
			t.Fatal(err)
		}
		b.until("the new one at the top", `document.querySelector('.choices a').getAttribute('href') !== `+quote(top))
		eval[any](b, `void [...document.querySelectorAll('.choices a')].find((a) => a.innerText.includes('m')).click()`)
		b.until("its candidates", `document.querySelectorAll('.costs ol li').length >= 1 && document.querySelector('.costs li.chosen')`)
		b.until("a row for each", `document.querySelectorAll('.decision tbody tr').length === document.querySelectorAll('.costs ol li').length`)
		if at := eval[string](b, `location.hash`); !strings.HasPrefix(at, "#/decisions/") {
			t.Errorf("the place is %s", at)
		}
		b.expecting(func() { // the browser logs an answer of 404
			b.follow("#/decisions/none-such")
			b.until("that it is not kept", `/not kept any more/.test(document.querySelector('.decision').innerText)`)
		})
	})

	step("StreamsAndSettings", func(t *testing.T) {
		b.follow("#/streams")
		b.until("streams", `document.querySelectorAll('.streams table tbody tr').length > 0`)
		b.until("this replica", `/this one/.test(document.querySelector('.streams').innerText)`)
		b.follow("#/settings")
		b.until("settings", `document.querySelectorAll('.settings tbody tr').length > 20`)
		eval[any](b, `{ const i = document.querySelector('#search'); i.value = 'health-every'; i.dispatchEvent(new Event('input')); void 0 }`)
		b.until("the one that is looked for", `[...document.querySelectorAll('.settings tbody tr')].some((r) => /health-every/.test(r.innerText) && /200ms/.test(r.innerText) && /flag/.test(r.innerText))`)
	})

	step("Tenants", func(t *testing.T) { tenants(t, f) })

	step("GapAndRepair", func(t *testing.T) {
		f.connect()
		b.visit("#/fleet")
		f.publish(1)
		b.until("the publisher's cell", `document.querySelector('.groups').innerText.includes('5 workers')`)
		f.publish(3) // 2 is lost, and its publisher has to look for it
		named := `document.querySelector('.attention').innerText.includes('` + fmt.Sprint(loser) + `')`
		b.until("the gap", named+` && /gap|recovering/.test(document.querySelector('.attention').innerText)`)
		b.picture("gap")
		f.found.Store(true)
		b.until("its repair", `!`+named)
		b.follow("#/streams")
		b.until("what became of it", `[...document.querySelectorAll('.streams tr')].some((r) => r.innerText.includes('`+fmt.Sprint(loser)+`:0') && r.innerText.includes('the events came'))`)
		b.picture("repaired")
	})

	step("KilledWorker", func(t *testing.T) {
		b.visit("#/fleet")
		f.second.kill()
		b.until("the dead worker", `/dead|silent/.test(document.querySelector('.attention').innerText) && document.querySelector('.attention').innerText.includes('50')`)
		// What it held is shown as of before.
		cells := `[...document.querySelectorAll('.group')].find((g) => g.textContent.includes('taken')).querySelector('.cells')`
		b.until("its colour without a hue", `(() => { const copy = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
			copy.drawImage(`+cells+`.querySelector('.heat'), 0, 0);
			const [r, g, b, a] = copy.getImageData(0, 0, 1, 1).data;
			return r === g && g === b && a > 0; })()`)
		eval[any](b, `void `+cells+`.dispatchEvent(new FocusEvent('focus'))`)
		b.until("its value as one that was", `/: was \d.*, dead/.test(`+cells+`.querySelector('[role=option]').innerText)`)
		b.picture("killed")
	})

	step("Keyboard", func(t *testing.T) { keyboard(t, b) })
	step("Looks", func(t *testing.T) { looks(t, b) })
	step("Paused", func(t *testing.T) { paused(t, b) })
	step("Late", func(t *testing.T) { late(t, f) })
	other := ""
	step("Gone", func(t *testing.T) {
		b.expecting(func() {
			b.visit("#/fleet")
			stop(t, f.router, syscall.SIGSTOP)
			b.until("that it is stale", `globalThis.kvatlas.state === 'stale' && /Nothing has come/.test(document.querySelector('#notice').innerText)`)
			b.picture("stale")
			stop(t, f.router, syscall.SIGCONT)
			b.until("that it is live", `globalThis.kvatlas.state === 'live' && document.querySelector('#notice').innerText === ''`)
			other = joined(t, f)
			f.router.kill() // and the NATS server with it
			b.until("that nobody is there", `globalThis.kvatlas.state === 'gone' && /connection is gone/.test(document.querySelector('#notice').innerText)`)
			b.picture("gone")
		})
	})
	t.Run("WithoutNATS", func(t *testing.T) { withoutNATS(t, other) })
}

// turnedAround lists texts that have what cannot be seen, or in which words stand before others that are
// written before them.
const turnedAround = `(() => {
	const wrong = [], raw = /[\u0007\u200b\u202e]/;
	for (const e of document.querySelectorAll('*')) for (const a of e.attributes) if (raw.test(a.value)) wrong.push('the attribute ' + a.name + ' of ' + e.className + ': ' + escape(a.value));
	const at = (n, i) => { const r = document.createRange(); r.setStart(n, i); r.setEnd(n, i + 1); return r.getBoundingClientRect(); };
	const all = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	for (let n; (n = all.nextNode());) {
		if (raw.test(n.data)) wrong.push('the text ' + escape(n.data));
		const m = /[\u05d0-\u05ea]([^\u05d0-\u05ea]*[0-9a-z])/.exec(n.data);
		if (!m) continue;
		const letter = at(n, m.index), after = at(n, m.index + m[0].length - 1);
		if (letter.width && after.width && Math.abs(letter.top - after.top) < 4 && after.left < letter.left) wrong.push('turned around: ' + escape(n.data));
	}
	return wrong;
})()`

func stop(t *testing.T, p *process, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// joined starts another router, at the NATS server that runs in the first one, and returns where its
// console is. It ends with the test of all.
func joined(t *testing.T, f *fleet) string {
	address := filepath.Join(f.home, "joined-address")
	start(f.whole, f.dir, f.home, "kvrouter", "--data-dir", filepath.Join(f.home, "data"), "--http-listen=127.0.0.1:0", "--admin-listen=", "--address-file", address,
		"--discover-every=50ms")
	base := ""
	until(t, "its console, with what it has read", func() error {
		text, err := os.ReadFile(address)
		if err != nil {
			return err
		}
		base = "http://" + strings.TrimSpace(string(text))
		resp, err := http.Get(base + "/console/api/streams") //nolint:noctx // a test's own server
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if text, err = io.ReadAll(resp.Body); err == nil && !strings.Contains(string(text), `"state":"following"`) {
			err = fmt.Errorf("it reads %s", text)
		}
		return err
	})
	return base + "/console"
}

// withoutNATS: a program that lives while its NATS server is gone says so in each view, with the time
// of what it knows.
func withoutNATS(t *testing.T, base string) {
	b := open(t, base)
	b.look(1280, 900, "light")
	b.expecting(func() {
		b.visit("#/fleet")
		said := `/NATS is not heard.* is of \d\d:\d\d:\d\d/.test(document.querySelector('#notice').innerText) && /no NATS/.test(document.querySelector('#pulse-text').innerText)`
		b.until("that NATS is gone", said+` && document.querySelector('.cells .heat')?.width > 0`)
		grey := `getComputedStyle(document.querySelector('.cells .heat')).filter.includes('grayscale')`
		if !eval[bool](b, grey) {
			t.Error("what cells hold has its colours, as if it were of now")
		}
		b.picture("no-nats-fleet")
		eval[any](b, `void document.querySelector('.metrics input[value=load]').click()`)
		b.until("the router's own load in its colours", `!`+grey)
		b.follow("#/streams")
		b.until("the streams, not caught up", `/NATS is not connected[^]*\d.s ago/.test(document.querySelector('.streams section table')?.innerText) && `+said)
		b.picture("no-nats-streams")
	})
	b.well()
}

// keyboard goes through all views with nothing but keys.
func keyboard(t *testing.T, b *tab) {
	b.visit("#/fleet")
	b.until("cells", `document.querySelector('.cells')`)
	b.press(kb.Tab, 1)
	if id := eval[string](b, `document.activeElement.id`); id != "skip" {
		t.Fatalf("the first stop is %q", id)
	}
	// Whatever has the focus shows it.
	seen := map[string]bool{}
	for range 60 {
		b.press(kb.Tab, 1)
		at := eval[string](b, `{ const e = document.activeElement, s = getComputedStyle(e), n = e.nextElementSibling ? getComputedStyle(e.nextElementSibling) : null;
			const shown = s.outlineStyle !== 'none' || (e.matches('input[type=radio]') && n?.outlineStyle !== 'none');
			e === document.body ? 'body' : (shown ? '' : 'unseen ') + (e.className || e.id || e.innerText || e.tagName) }`)
		if strings.HasPrefix(at, "unseen ") {
			t.Errorf("the focus is not to be seen at %s", at)
		}
		if strings.HasPrefix(at, "cells") {
			break
		}
		seen[at] = true
	}
	b.press(kb.ArrowRight, 2)
	b.press(kb.Enter, 1)
	b.until("the worker of a cell", `/Worker (3|50)/.test(document.querySelector('.details:not([hidden]) h2')?.innerText)`)
	b.press(kb.Escape, 1)
	b.until("no details", `document.querySelector('.details').hidden && document.activeElement.matches('.cells')`)

	b.follow("#/prefixes?model=m&block_size=16&group=")
	b.until("a tree", `document.querySelector('.tree ul [role=treeitem]')`)
	for range 40 {
		b.press(kb.Tab, 1)
		if eval[bool](b, `document.activeElement.getAttribute('role') === 'treeitem'`) {
			break
		}
	}
	b.press(kb.ArrowDown, 1)
	b.press(kb.Enter, 1)
	b.until("holders", `document.querySelectorAll('.holders:not([hidden]) tbody tr').length > 0`)
	b.press(kb.ArrowLeft, 2)
	b.until("the parent", `document.activeElement.getAttribute('aria-level') === '1'`)

	b.follow("#/decisions")
	b.until("a list", `document.querySelectorAll('.choices li').length > 5`)
	for range 40 {
		b.press(kb.Tab, 1)
		if eval[bool](b, `document.activeElement.matches('.choices a')`) {
			break
		}
	}
	b.press(kb.Enter, 1)
	b.until("a decision", `document.querySelector('.decision:not([hidden]) .verdict')`)
}

// looks shows every view at three widths and in both themes: nothing is wider than the
// window, and axe-core finds nothing serious.
func looks(t *testing.T, b *tab) {
	axe := axeCore(t)
	thorough := os.Getenv("KVATLAS_SCREENSHOTS") != "" // somebody waits for it
	decision := eval[string](b, `fetch('api/decisions?limit=100').then((r) => r.json()).then((d) => d.decisions.find((x) => x.rows > 1)?.id ?? d.decisions[0].id)`)
	places := map[string]string{
		"fleet": "#/fleet", "worker": "#/fleet?worker=1", "prefixes": "#/prefixes?model=m&block_size=16&group=", "decisions": "#/decisions",
		"decision": "#/decisions/" + decision, "streams": "#/streams", "settings": "#/settings",
	}
	there := map[string]string{
		"fleet": `document.querySelector('.cells .heat')?.width > 0 && document.querySelector('.figure .value').innerText`, "worker": `document.querySelector('.details .held')`,
		"prefixes": `document.querySelector('.tree ul [role=treeitem]')`, "decisions": `document.querySelectorAll('.choices li').length > 5`,
		"decision": `document.querySelector('.decision .verdict')`, "streams": `document.querySelector('.streams section')`, "settings": `document.querySelector('.settings tbody tr')`,
	}
	sizes := [][2]int64{{360, 780}, {1280, 900}, {3840, 2160}}
	if thorough {
		sizes = append(sizes, [2]int64{768, 1024})
	}
	for _, theme := range []string{"light", "dark"} {
		for _, size := range sizes {
			b.look(size[0], size[1], theme)
			b.visit("#/fleet")
			for name, hash := range places {
				b.follow(hash)
				b.until(name, there[name])
				eval[any](b, `new Promise((f) => requestAnimationFrame(() => requestAnimationFrame(() => f(null))))`)
				if wide := eval[int64](b, `document.documentElement.scrollWidth`); wide > size[0] {
					t.Errorf("%s is %d wide in a window of %d", name, wide, size[0])
				}
				if tall := eval[int64](b, `document.querySelector('.cells')?.clientHeight ?? 0`); name == "fleet" && size[0] == 3840 && tall < 120 {
					t.Errorf("seven cells have rows of %d pixels where there is room for larger ones", tall)
				}
				b.picture(fmt.Sprintf("%s-%d-%s", name, size[0], theme))
				if axe != "" && (size[0] == 1280 || thorough && size[0] < 1280) {
					for _, found := range serious(b, axe) {
						t.Errorf("%s, %d wide, %s: %s", name, size[0], theme, found)
					}
				}
			}
		}
	}
	b.look(1280, 900, "light")
}

// paused: a page that is told to stop reads nothing, and says so; the theme is the reader's.
func paused(t *testing.T, b *tab) {
	b.visit("#/fleet")
	eval[any](b, `void document.querySelector('#pause').click()`)
	b.until("that it is paused", `globalThis.kvatlas.state === 'paused' && /Paused/.test(document.querySelector('#notice').innerText)`)
	if !eval[bool](b, `getComputedStyle(document.querySelector('.cells .heat')).filter.includes('grayscale')`) {
		t.Error("what cells held when it was paused has its colours, as if it were of now")
	}
	read := eval[int64](b, `globalThis.kvatlas.read`)
	until(t, "two seconds", after(2*time.Second))
	if now := eval[int64](b, `globalThis.kvatlas.read`); now != read {
		t.Errorf("%d bytes were read while paused", now-read)
	}
	eval[any](b, `void document.querySelector('#pause').click()`)
	b.until("that it goes on", `globalThis.kvatlas.state === 'live'`)
	eval[any](b, `void document.querySelector('#theme').click()`)
	if theme := eval[string](b, `document.documentElement.dataset.theme + ' ' + getComputedStyle(document.body).backgroundColor`); theme != "dark rgb(15, 18, 22)" {
		t.Errorf("the theme is %s", theme)
	}
	eval[any](b, `{ document.querySelector('#theme').click(); document.querySelector('#theme').click(); void 0 }`)
}

// after is true once so much time has passed.
func after(d time.Duration) func() error {
	end := time.Now().Add(d)
	return func() error {
		if left := time.Until(end); left > 0 {
			return fmt.Errorf("%v are left", left)
		}
		return nil
	}
}
