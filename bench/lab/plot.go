package lab

import (
	"cmp"
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strconv"
)

// Point is one run's place in the trade-off, and where its requests' time went.
type Point struct {
	Policy, Name string             // of the run among those of its policy; may be empty
	Reuse        float64            // part of the prompt tokens
	TTFTP99, At  float64            // ms; and what the points of a policy are ordered by
	Spent        [NumPhases]float64 // ms of a request, in the mean
}

// Panel is the load of the workers in one run.
type Panel struct {
	Policy string
	Load   Series
}

const (
	plotWide, plotHigh   = 920, 380
	plotLeft, plotBottom = 66, 44
	plotRight            = plotWide - 210
	barHigh              = 22
	panelHigh            = 96
	panelPoints          = 160 // at most, in a panel
)

// plotStyle is what attributes do not say: another ground for who prefers a dark one, and a rim
// of it around names, so that lines do not cross them. Elsewhere its rules hit nothing, as the
// picture may stand in a page.
const plotStyle = `<style>
svg .name { paint-order: stroke; stroke: white; stroke-width: 3px; stroke-linejoin: round }
@media (prefers-color-scheme: dark) {
svg .ground { fill: #12181e } svg text:not([fill]) { fill: #e3e9ef } svg path { stroke: #33404c } svg .name { stroke: #12181e }
svg polyline, svg circle, svg text[fill] { filter: brightness(1.35) }
}
</style>
`

// colours of policies, in the order in which they appear; dark enough for a
// white ground.
func colours() []string {
	return []string{"#888888", "#1f77b4", "#17a2a2", "#9467bd", "#ff7f0e", "#d62728", "#2ca02c", "#8c564b", "#c2408f", "#8a8b1a"}
}

// Plot writes an SVG: reuse against the 99th percentile of first-token times, a
// line a policy and a name at each point; where the time of each run's requests went; and
// for each panel the mean load of the workers over time in a band from the least to the most
// loaded, all on one scale.
func Plot(w io.Writer, points []Point, panels []Panel) error {
	p := &plot{w: w}
	bars := plotHigh + 30
	loads := bars + 34 + len(points)*barHigh + 30
	high := loads + len(panels)*(panelHigh+26) + 10
	p.f(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="system-ui, sans-serif" font-size="12" role="img" aria-label="runs compared">`+"\n", plotWide, high, plotWide, high)
	p.f(plotStyle + `<rect class="ground" width="100%%" height="100%%" fill="white"/>` + "\n")
	p.tradeOff(points)
	p.bars(points, bars)
	bands, most, longest := make([]band, len(panels)), 1.0, 0.0
	for i := range panels {
		bands[i] = bandOf(panels[i].Load)
		most, longest = max(most, bands[i].most), max(longest, panels[i].seconds())
	}
	for i := range panels {
		p.panel(&panels[i], &bands[i], most, longest, loads+i*(panelHigh+26))
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

// ticks returns round numbers from lo to hi, about n of them.
func ticks(lo, hi float64, n int) (at []float64) {
	step := math.Pow(10, math.Floor(math.Log10((hi-lo)/float64(n))))
	for _, m := range [...]float64{2, 2.5, 2} { // 1, 2, 5, 10
		if (hi-lo)/step <= float64(n) {
			break
		}
		step *= m
	}
	for i := math.Ceil(lo/step - 1e-9); i*step <= hi+1e-9*step; i++ {
		at = append(at, i*step+0) // no -0
	}
	return at
}

// logTicks returns round numbers from lo to hi for a logarithmic axis.
func logTicks(lo, hi float64) (at []float64) {
	for decade := math.Pow(10, math.Floor(math.Log10(lo))); decade <= hi; decade *= 10 {
		for _, m := range [...]float64{1, 2, 5} {
			if v := m * decade; v >= lo*(1-1e-9) && v <= hi*(1+1e-9) {
				at = append(at, v)
			}
		}
	}
	if len(at) < 2 {
		return ticks(lo, hi, 5)
	}
	return at
}

// number is a tick's text.
func number(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }

// around returns limits with some room around what f gives.
func around(points []Point, f func(Point) float64) (lo, hi float64) {
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
	x0, x1 := around(points, func(q Point) float64 { return q.Reuse })
	y0, y1 := around(points, func(q Point) float64 { return math.Log(max(q.TTFTP99, 1e-3)) })
	const top = 28
	x := func(v float64) float64 { return plotLeft + (v-x0)/(x1-x0)*(plotRight-plotLeft) }
	y := func(v float64) float64 {
		return plotHigh - plotBottom - (math.Log(max(v, 1e-3))-y0)/(y1-y0)*(plotHigh-plotBottom-top)
	}
	for _, v := range ticks(x0, x1, 7) {
		p.f(`<path d="M%.1f %d V%d" stroke="#e3e3e3"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", x(v), top, plotHigh-plotBottom, x(v), plotHigh-plotBottom+17, number(v))
	}
	for _, v := range logTicks(math.Exp(y0), math.Exp(y1)) {
		p.f(`<path d="M%d %.1f H%d" stroke="#e3e3e3"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", plotLeft, y(v), plotRight, plotLeft-6, y(v)+4, number(v))
	}
	p.f(`<text x="%d" y="%d" text-anchor="middle">part of prompt tokens reused</text>`, (plotLeft+plotRight)/2, plotHigh-6)
	p.f(`<text x="4" y="15" font-weight="bold">p99 of first-token times, ms (logarithmic): lower and further right is better</text>` + "\n")
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
		slices.SortStableFunc(line, func(a, b Point) int { return cmp.Compare(a.At, b.At) })
		c := p.colour(policy)
		p.f(`<polyline fill="none" stroke="%s" stroke-width="2" points="`, c)
		for _, q := range line {
			p.f("%.1f,%.1f ", x(q.Reuse), y(q.TTFTP99))
		}
		p.f(`"/>`)
		for _, q := range line {
			p.f(`<circle cx="%.1f" cy="%.1f" r="4" fill="%s"><title>%s</title></circle>`, x(q.Reuse), y(q.TTFTP99), c,
				html.EscapeString(fmt.Sprintf("%s: %.3f reused, p99 %.0f ms", q.name(), q.Reuse, q.TTFTP99)))
			name := cmp.Or(q.Name, q.Policy)
			anchor, at := "start", x(q.Reuse)+7
			if at > plotRight-6*float64(len(name)) {
				anchor, at = "end", x(q.Reuse)-7
			}
			p.f(`<text class="name" x="%.1f" y="%.1f" fill="%s" font-size="11" text-anchor="%s">%s</text>`, at, y(q.TTFTP99)-5+float64(i%2)*19, c, anchor, html.EscapeString(name))
		}
		p.f(`<text x="%d" y="%d" fill="%s">%s</text>`+"\n", plotRight+14, top+14+18*i, c, html.EscapeString(policy))
	}
}

func (q *Point) name() string {
	if q.Name == "" {
		return q.Policy
	}
	return q.Policy + " " + q.Name
}

// phaseColours are of the phases in their order.
func phaseColours() [NumPhases]string { return [...]string{"#e0a030", "#3d7fc4", "#58a868", "#c8504b"} }

// bars draws where the time of a request went in each run.
func (p *plot) bars(points []Point, top int) {
	const left = 210
	p.f(`<text x="4" y="%d" font-weight="bold">where a request's time goes, ms in the mean</text>`, top+6)
	for i, c := range phaseColours() {
		p.f(`<rect x="%d" y="%d" width="11" height="11" fill="%s"/><text x="%d" y="%d">%s</text>`, 330+i*110, top-4, c, 346+i*110, top+6, Phase(i))
	}
	most := 1e-3
	for _, q := range points {
		most = max(most, q.Spent[0]+q.Spent[1]+q.Spent[2]+q.Spent[3])
	}
	const wide = plotWide - left - 80
	for i := range points {
		q, at, y := &points[i], float64(left), top+18+i*barHigh
		p.f("\n"+`<text x="%d" y="%d" text-anchor="end" fill="%s">%s</text>`, left-8, y+14, p.colour(q.Policy), html.EscapeString(q.name()))
		sum := 0.0
		for k, v := range q.Spent {
			w := v / most * wide
			p.f(`<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"><title>%s %.1f ms</title></rect>`, at, y+2, w, barHigh-5, phaseColours()[k], Phase(k), v)
			at, sum = at+w, sum+v
		}
		p.f(`<text x="%.1f" y="%d">%.0f</text>`, at+6, y+14, sum)
	}
	p.f("\n")
}

// band is a run's load, in points to draw.
type band struct {
	lo, mean, hi []float64
	most         float64
}

func bandOf(load Series) (b band) {
	rows := load.Live
	each := (len(rows) + panelPoints - 1) / panelPoints
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
		b.lo, b.mean, b.hi = append(b.lo, l/n), append(b.mean, m/n), append(b.hi, h/n)
		b.most = max(b.most, h/n)
	}
	return b
}

func (p *Panel) seconds() float64 { return float64(len(p.Load.Live)) * p.Load.Interval.Seconds() }

// panel draws one run's load, on the scale of all.
func (p *plot) panel(panel *Panel, b *band, most, longest float64, top int) {
	colour := p.colour(panel.Policy)
	p.f(`<text x="4" y="%d" fill="%s">%s: requests on a worker, least to most, and mean</text>`, top+12, colour, html.EscapeString(panel.Policy))
	if len(b.mean) == 0 {
		return
	}
	const right = plotWide - 20
	base := float64(top + panelHigh)
	x := func(i int) float64 {
		return plotLeft + float64(i)/float64(max(len(b.mean)-1, 1))*panel.seconds()/longest*(right-plotLeft)
	}
	y := func(v float64) float64 { return base - v/most*(panelHigh-22) }
	for _, v := range ticks(0, most, 3) {
		p.f(`<path d="M%d %.1f H%d" stroke="#e3e3e3"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`, plotLeft, y(v), right, plotLeft-6, y(v)+4, number(v))
	}
	p.f(`<polygon fill="%s" fill-opacity="0.25" points="`, colour)
	for i := range b.hi {
		p.f("%.0f,%.1f ", x(i), y(b.hi[i]))
	}
	for i := len(b.lo) - 1; i >= 0; i-- {
		p.f("%.0f,%.1f ", x(i), y(b.lo[i]))
	}
	p.f(`"/><polyline fill="none" stroke="%s" stroke-width="1.5" points="`, colour)
	for i := range b.mean {
		p.f("%.0f,%.1f ", x(i), y(b.mean[i]))
	}
	p.f(`"/>`)
	for _, v := range ticks(0, longest, 8) {
		p.f(`<text x="%.1f" y="%.0f" text-anchor="middle">%s s</text>`, plotLeft+v/longest*(right-plotLeft), base+14, number(v))
	}
	p.f("\n")
}
