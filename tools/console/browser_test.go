package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

const patience = 30 * time.Second

// chromium returns the browser's path, or skips the test.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{os.Getenv("KVATLAS_CHROMIUM"), "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if name == "" {
			continue
		}
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("skipped: there is no Chromium; install one, or name it in KVATLAS_CHROMIUM")
	return ""
}

// tab is a page of a browser that remembers what went wrong in it.
type tab struct {
	t    *testing.T
	ctx  context.Context //nolint:containedctx // the browser's, as its driver wants it
	base string

	mu     sync.Mutex
	faults []string
	calm   bool // what goes wrong is meant to
}

// open starts a browser with one page. Whatever it requests from elsewhere, writes to its
// console as an error, or is kept from by the Content-Security-Policy is a fault.
func open(t *testing.T, base string) *tab {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium(t)), chromedp.DisableGPU)
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	allocated, stop := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(allocated)
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx, base: base}
	home, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	err = chromedp.Listen(ctx, func(event any) {
		if e, ok := event.(*network.EventRequestWillBeSent); ok {
			if u, err := url.Parse(e.Request.URL); err != nil || u.Scheme != "data" && u.Scheme != "about" && u.Host != home.Host {
				b.fault("a request to " + e.Request.URL)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	messages := chromedp.Console(ctx)
	go func() { // ends with the browser
		for m, err := range messages {
			if err != nil {
				return
			}
			if m.IsException() || m.Type == "error" || m.Type == "warning" {
				b.fault(fmt.Sprintf("the browser's console: %s %s %s:%d", m.Type, m.Text, m.URL, m.Line+1))
			}
		}
	}()
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	_, err = chromedp.Call(ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{
		Source: `globalThis.violations = []; addEventListener('securitypolicyviolation', (e) => violations.push(e.violatedDirective + ' ' + e.blockedURI + ' ' + e.sourceFile + ':' + e.lineNumber));`,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *tab) fault(words string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.calm {
		b.faults = append(b.faults, words)
	}
}

// expecting runs f, in which things go wrong on purpose.
func (b *tab) expecting(f func()) {
	set := func(calm bool) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.calm = calm
	}
	set(true)
	f()
	set(false)
}

// well fails the test with what went wrong since it was asked last.
func (b *tab) well() {
	b.t.Helper()
	b.mu.Lock()
	faults := b.faults
	b.faults = nil
	b.mu.Unlock()
	for _, v := range eval[[]string](b, `globalThis.violations ?? []`) {
		faults = append(faults, "the Content-Security-Policy: "+v)
	}
	for _, f := range faults {
		b.t.Error(f)
	}
}

func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// eval returns what an expression of JavaScript is, or what its promise becomes.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	v, err := tryEval[T](b, expression)
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

func tryEval[T any](b *tab, expression string) (T, error) {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// until waits until an expression is true; what says for what.
func (b *tab) until(what, expression string) {
	b.t.Helper()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		ok, err := tryEval[bool](b, "Boolean("+expression+")")
		if ok {
			return
		}
		if time.Now().After(end) {
			b.picture("failed")
			b.t.Fatalf("in vain: %s (%v); the page says:\n%.3000s", what, err, eval[string](b, `document.body.innerText`))
		}
	}
}

// visit shows a place of the console, in a new page.
func (b *tab) visit(hash string) {
	b.t.Helper()
	b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(b.base+"/"+hash))
	b.until("the stream", `globalThis.kvatlas?.state === 'live'`)
}

// go to a place within the page, as a link does.
func (b *tab) follow(hash string) {
	b.t.Helper()
	eval[any](b, `void (location.hash = `+quote(hash)+`)`)
}

func quote(s string) string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// look sets the size of the window and what the system prefers.
func (b *tab) look(width, height int64, theme string) {
	b.t.Helper()
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}, {Name: "prefers-reduced-motion", Value: "reduce"}}
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features}); err != nil {
		b.t.Fatal(err)
	}
	b.do(chromedp.EmulateViewport(width, height))
}

// picture writes a screenshot, where a folder for them is named.
func (b *tab) picture(name string) {
	b.t.Helper()
	folder := os.Getenv("KVATLAS_SCREENSHOTS")
	if folder == "" {
		return
	}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.MkdirAll(folder, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, strings.ReplaceAll(name, "/", "-")+".png"), png, 0o600)
	}
	if err != nil {
		b.t.Error(err)
	}
}

// press types a key, as many times as told.
func (b *tab) press(key string, times int) {
	b.t.Helper()
	for range times {
		b.do(chromedp.KeyEvent(key))
	}
}
