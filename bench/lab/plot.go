package lab

import (
	"fmt"
	"html"
	"io"
	"math"
	"slices"
)

// Point is one run's place in the trade-off.
type Point struct {
	Policy      string
	Reuse       float64 // part of the prompt tokens
	TTFTP99, At float64 // ms; and what the points of a policy are ordered by
}

// Panel is the load of the workers in one run.
type Panel struct {
	Policy string
	Load   Series
}

const (
	plotWide, plotHigh   = 720, 300
	plotLeft, plotBottom = 60, 40
	panelHigh            = 90
	panelPoints          = 160 // at most, in a panel
)

// colours of policies, in the order in which they appear; dark enough for a
// white ground.
func colours() []string {
	return []string{"#888888", "#1f77b4", "#17a2a2", "#9467bd", "#ff7f0e", "#d62728", "#2ca02c", "#8c564b"}
}

// Plot writes an SVG: reuse against the 99th percentile of first-token times, a
// line a policy, and below it for each panel the mean load of the workers over
// time in a band from the least to the most loaded.
func Plot(w io.Writer, points []Point, panels []Panel) error {
	p := &plot{w: w}
	high := plotHigh + 20 + len(panels)*(panelHigh+24)
	p.f(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", plotWide, high)
	p.f(`<rect width="100%%" height="100%%" fill="white"/>` + "\n")
	p.tradeOff(points)
	for i, panel := range panels {
		p.panel(panel, plotHigh+20+i*(panelHigh+24), p.colour(panel.Policy))
	}
	p.f("</svg>\n")
	return p.err
}

type plot struct {
	w        io.Writer
	err      error
	policies []string
}

func (p *plot) f(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

func (p *plot) colour(policy string) string {
	i := slices.Index(p.policies, policy)
	if i < 0 {
		i = len(p.policies)
		p.policies = append(p.policies, policy)
	}
	c := colours()
	return c[i%len(c)]
}

// span returns round limits around what f gives.
func span(points []Point, f func(Point) float64) (lo, hi float64) {
	lo, hi = math.Inf(1), math.Inf(-1)
	for _, q := range points {
		lo, hi = min(lo, f(q)), max(hi, f(q))
	}
	if !(hi > lo) {
		return lo - 0.5, lo + 0.5
	}
	pad := (hi - lo) * 0.08
	return lo - pad, hi + pad
}

func (p *plot) tradeOff(points []Point) {
	if len(points) == 0 {
		return
	}
	x0, x1 := span(points, func(q Point) float64 { return q.Reuse })
	y0, y1 := span(points, func(q Point) float64 { return math.Log(max(q.TTFTP99, 1e-3)) })
	const right, top = plotWide - 170, 20
	x := func(v float64) float64 { return plotLeft + (v-x0)/(x1-x0)*(right-plotLeft) }
	y := func(v float64) float64 {
		return plotHigh - plotBottom - (math.Log(max(v, 1e-3))-y0)/(y1-y0)*(plotHigh-plotBottom-top)
	}
	for i := range 6 {
		at := float64(i) / 5
		rx, ry := x0+at*(x1-x0), math.Exp(y0+at*(y1-y0))
		p.f(`<path d="M%.1f %d V%d M%d %.1f H%d" stroke="#dddddd"/>`, x(rx), top, plotHigh-plotBottom, plotLeft, y(ry), right)
		p.f(`<text x="%.1f" y="%d" text-anchor="middle">%.2f</text>`, x(rx), plotHigh-plotBottom+16, rx)
		p.f(`<text x="%d" y="%.1f" text-anchor="end">%.0f</text>`+"\n", plotLeft-6, y(ry)+4, ry)
	}
	p.f(`<text x="%d" y="%d" text-anchor="middle">part of prompt tokens reused</text>`, (plotLeft+right)/2, plotHigh-6)
	p.f(`<text x="%d" y="13">p99 of first-token times, ms (logarithmic)</text>`+"\n", 4)
	var order []string
	by := map[string][]Point{}
	for _, q := range points {
		if by[q.Policy] == nil {
			order = append(order, q.Policy)
		}
		by[q.Policy] = append(by[q.Policy], q)
	}
	for i, policy := range order {
		line := by[policy]
		slices.SortStableFunc(line, func(a, b Point) int {
			switch {
			case a.At < b.At:
				return -1
			case a.At > b.At:
				return 1
			}
			return 0
		})
		c := p.colour(policy)
		p.f(`<polyline fill="none" stroke="%s" stroke-width="2" points="`, c)
		for _, q := range line {
			p.f("%.1f,%.1f ", x(q.Reuse), y(q.TTFTP99))
		}
		p.f(`"/>`)
		for _, q := range line {
			p.f(`<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"/>`, x(q.Reuse), y(q.TTFTP99), c)
		}
		p.f(`<text x="%d" y="%d" fill="%s">%s</text>`+"\n", right+14, top+14+18*i, c, html.EscapeString(policy))
	}
}

// panel draws one run's load.
func (p *plot) panel(panel Panel, top int, colour string) {
	p.f(`<text x="4" y="%d">%s: requests on a worker, least to most, and mean</text>`, top+12, html.EscapeString(panel.Policy))
	rows := panel.Load.Live
	if len(rows) == 0 {
		return
	}
	each := (len(rows) + panelPoints - 1) / panelPoints
	var lo, mean, hi []float64
	most := 1.0
	for from := 0; from < len(rows); from += each {
		part := rows[from:min(from+each, len(rows))]
		var l, m, h float64
		for _, row := range part {
			sum := 0.0
			for _, n := range row {
				sum += float64(n)
			}
			l += float64(slices.Min(row))
			h += float64(slices.Max(row))
			m += sum / float64(len(row))
		}
		n := float64(len(part))
		lo, mean, hi = append(lo, l/n), append(mean, m/n), append(hi, h/n)
		most = max(most, h/n)
	}
	const right = plotWide - 20
	base := float64(top + panelHigh)
	x := func(i int) float64 { return plotLeft + float64(i)/float64(max(len(mean)-1, 1))*(right-plotLeft) }
	y := func(v float64) float64 { return base - v/most*(panelHigh-20) }
	p.f(`<polygon fill="%s" fill-opacity="0.25" points="`, colour)
	for i := range hi {
		p.f("%.0f,%.1f ", x(i), y(hi[i]))
	}
	for i := len(lo) - 1; i >= 0; i-- {
		p.f("%.0f,%.1f ", x(i), y(lo[i]))
	}
	p.f(`"/><polyline fill="none" stroke="%s" points="`, colour)
	for i := range mean {
		p.f("%.0f,%.1f ", x(i), y(mean[i]))
	}
	seconds := float64(len(rows)) * panel.Load.Interval.Seconds()
	p.f(`"/><text x="%d" y="%.0f" text-anchor="end">%.0f</text>`, plotLeft-6, y(most)+4, most)
	p.f(`<text x="%d" y="%.0f">0</text><text x="%d" y="%.0f" text-anchor="end">%.0f s</text>`+"\n",
		plotLeft-14, base+4, right, base+14, seconds)
}
