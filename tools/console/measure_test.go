package console

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"
)

// TestMeasure measures one page of a console that somebody else has started, whose URL is
// in KVATLAS_CONSOLE_URL: when its first picture is there, the bytes a second of its
// stream, frames a second, and its memory, for KVATLAS_CONSOLE_MINUTES (3).
func TestMeasure(t *testing.T) {
	url := os.Getenv("KVATLAS_CONSOLE_URL")
	if url == "" {
		t.Skip("skipped: KVATLAS_CONSOLE_URL names no console")
	}
	minutes, err := strconv.Atoi(os.Getenv("KVATLAS_CONSOLE_MINUTES"))
	if err != nil {
		minutes = 3
	}
	b := open(t, url)
	b.do(chromedp.EmulateViewport(1280, 900), chromedp.Navigate("about:blank"))
	if _, err := chromedp.Call(b.ctx, performance.Enable, performance.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	b.do(chromedp.Navigate(url + "/#/fleet"))
	b.until("cells", `document.querySelector('.cells .heat')?.width > 0`)
	paint := eval[map[string]float64](b, `Object.fromEntries(performance.getEntriesByType('paint').map((e) => [e.name, Math.round(e.startTime)]))`)
	t.Logf("first paint %v ms, cells within %.0f ms of the navigation", paint, eval[float64](b, `performance.now()`))
	t.Logf("shown: %s", eval[string](b, `[...document.querySelectorAll('.group > .quiet')].map((p) => p.innerText).join('; ')`))
	for minute := range minutes {
		begun, read := time.Now(), eval[float64](b, `kvatlas.read`)
		type frames struct {
			Seconds, Rate, Worst, Over float64
		}
		f := eval[frames](b, `new Promise((done) => { const times = []; const begun = performance.now();
			requestAnimationFrame(function step(t) { times.push(t); if (t - begun < 20000) { requestAnimationFrame(step); return; }
				const gaps = times.slice(1).map((x, i) => x - times[i]);
				done({Seconds: (times.at(-1) - times[0]) / 1000, Rate: 1000 * gaps.length / (times.at(-1) - times[0]), Worst: Math.max(...gaps), Over: gaps.filter((g) => g > 25).length}); }); })`)
		<-time.After(time.Minute - time.Since(begun))
		rate := (eval[float64](b, `kvatlas.read`) - read) / time.Since(begun).Seconds()
		if _, err := chromedp.Call(b.ctx, heapprofiler.CollectGarbage, cdp.Empty{}); err != nil {
			t.Fatal(err)
		}
		m, err := chromedp.Call(b.ctx, performance.GetMetrics, cdp.Empty{})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, x := range m.Metrics {
			got[x.Name] = x.Value
		}
		t.Logf("minute %d: %.1f kB/s, %.1f frames/s of %.0f s, longest %.0f ms, %.0f over 25 ms; heap %.1f MB, %.0f nodes, scripts and layout %.1f s so far",
			minute+1, rate/1e3, f.Rate, f.Seconds, f.Worst, f.Over, got["JSHeapUsedSize"]/1e6, got["Nodes"], got["TaskDuration"])
	}
	b.well()
}
