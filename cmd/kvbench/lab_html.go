package main

import (
	"fmt"
	"html"
	"io"
	"os"
	"strings"

	"github.com/kvatlas/kvatlas/bench/lab"
)

const labStyle = `<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>kvbench lab</title>
<style>
:root { color-scheme: light dark; --text: #1b2733; --ground: #fbfcfd; --line: #d5dde5; --soft: #5d6b79 }
@media (prefers-color-scheme: dark) { :root { --text: #e3e9ef; --ground: #12181e; --line: #33404c; --soft: #9aa8b5 } }
body { font: max(15px, .7vw)/1.5 system-ui, sans-serif; color: var(--text); background: var(--ground); max-width: 78rem; margin: 2rem auto; padding: 0 1rem }
svg { width: 100%; height: auto; border: 1px solid var(--line); border-radius: 6px }
h1 { font-size: 1.4rem } p { color: var(--soft) } code { overflow-wrap: anywhere }
div { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin-top: .5rem }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap } th { white-space: normal; vertical-align: bottom }
th:first-child, td:first-child { text-align: left }
</style>
`

// report writes a page with the pictures and the table. It asks for nothing from elsewhere.
func (o *labOptions) report(w io.Writer) error {
	var b strings.Builder
	b.WriteString(labStyle)
	fmt.Fprintf(&b, "<h1>Routing policies, simulated</h1>\n<p><code>kvbench %s</code></p>\n", html.EscapeString(strings.Join(os.Args[min(1, len(os.Args)):], " ")))
	if err := lab.Plot(&b, o.points, o.panels); err != nil {
		return err
	}
	b.WriteString("<p id=table>Of each run. Times in ms; load is the busiest worker's over the mean.</p>\n<div><table aria-describedby=table>\n<tr><th>policy<th>setting<th>reuse<th>first token mean<th>p50<th>p99<th>each further<th>end mean<th>p99" +
		"<th>waiting<th>computing<th>decoding<th>preempted<th>preemptions<th>tokens/s<th>load\n")
	for i := range o.rows {
		r := &o.rows[i]
		fmt.Fprintf(&b, "<tr><td>%s<td>%s<td>%.3f<td>%.1f<td>%.1f<td>%.0f<td>%.2f<td>%.0f<td>%.0f<td>%.1f<td>%.1f<td>%.1f<td>%.1f<td>%.0f<td>%.0f<td>%.2f\n",
			html.EscapeString(r.Policy), html.EscapeString(nameOf(r.Setting)), r.Reuse, r.TTFTMean, r.TTFTP50, r.TTFTP99, r.TPOTMean, r.E2EMean, r.E2EP99,
			r.Waiting, r.Computing, r.Decoding, r.Preempted, r.Preemptions, r.OutputPerSecond, r.LoadMaxOverMean)
	}
	b.WriteString("</table></div>\n</html>\n")
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
