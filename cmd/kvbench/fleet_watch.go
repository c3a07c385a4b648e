package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// fleetWatch samples the programs while the load goes on.
type fleetWatch struct {
	c       *fleetCluster
	begun   int // sample at which the load began: the first
	samples []fleetSample
	probes  []fleetProbe
}

// fleetSample is what kvindexer had counted at a moment, and what the programs took.
type fleetSample struct {
	at                    time.Time
	events, messages, lag float64
	resets                float64 // times that reading began again
	rss                   rssMiB
}

// sampleEvery is how often kvindexer is asked; its metrics of a large fleet are long.
const sampleEvery = time.Second

// stallAfter is how long nothing becomes visible when that counts as a stall.
const stallAfter = time.Second

func newFleetWatch(c *fleetCluster) *fleetWatch { return &fleetWatch{c: c} }

// load watches for that long, and prints a line for each part.
func (w *fleetWatch) load(ctx context.Context, d time.Duration, print func(any) error) error {
	if err := w.sample(ctx); err != nil {
		return err
	}
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	begun := w.samples[0].at
	line := 0 // the sample at which the present line begins
	for {
		select {
		case n := <-w.c.out:
			w.probes = append(w.probes, n.Probes...)
			continue
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := w.sample(ctx); err != nil {
			return err
		}
		now := w.samples[len(w.samples)-1].at
		if now.Sub(begun) >= d {
			w.rest(ctx)
			return nil
		}
		if now.Sub(w.samples[line].at) >= lineEvery {
			if err := print(w.result(line)); err != nil {
				return err
			}
			line = len(w.samples) - 1
		}
	}
}

// rest takes what was found before now and not told yet.
func (w *fleetWatch) rest(ctx context.Context) {
	late := time.After(2 * stallAfter)
	for {
		select {
		case n := <-w.c.out:
			w.probes = append(w.probes, n.Probes...)
		case <-late:
			return
		case <-ctx.Done():
			return
		}
	}
}

// sample asks kvindexer.
func (w *fleetWatch) sample(ctx context.Context) error {
	s := fleetSample{rss: w.c.rss()}
	for _, p := range w.c.indexers {
		if err := s.add(ctx, p); err != nil {
			return err
		}
	}
	s.at = time.Now()
	w.samples = append(w.samples, s)
	return nil
}

// add adds what one kvindexer has counted.
func (s *fleetSample) add(ctx context.Context, p *fleetProcess) error {
	body, err := fleetGet(ctx, p.url+"/metrics")
	if err != nil {
		return err
	}
	defer body.Close() //nolint:errcheck // only read
	return eachMetric(body, func(name string, value float64) {
		switch name {
		case "kvatlas_ingest_events_total":
			s.events += value
		case "kvatlas_ingest_messages_total":
			s.messages += value
		case "kvatlas_ingest_lag_messages":
			s.lag = max(s.lag, value)
		case "kvatlas_ingest_reader_resets_total":
			s.resets += value
		}
	})
}

// eachMetric reads metrics in Prometheus's text format, without their labels.
func eachMetric(r io.Reader, each func(name string, value float64)) error {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		head, text, found := strings.Cut(lines.Text(), " ")
		if i := strings.LastIndexByte(lines.Text(), ' '); i >= 0 {
			text = lines.Text()[i+1:]
		}
		if !found || head == "#" {
			continue
		}
		name, _, _ := strings.Cut(head, "{")
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("metric %s: %w", name, err)
		}
		each(name, value)
	}
	return lines.Err()
}

// result is a line about what was since the sample.
func (w *fleetWatch) result(from int) fleetResult {
	a, b := w.samples[from], w.samples[len(w.samples)-1]
	seconds := b.at.Sub(a.at).Seconds()
	r := fleetResult{
		Workers: w.c.o.workers, EventsPerS: (b.events - a.events) / seconds, MessagesPerS: (b.messages - a.messages) / seconds,
		Stalls: int(b.resets - a.resets), RSS: make(rssMiB), Sync: w.c.o.sync.String(),
	}
	if w.c.o.always {
		r.Sync = "always"
	}
	for _, s := range w.samples[from:] {
		r.LagMax = max(r.LagMax, s.lag)
		for name := range maps.Keys(s.rss) {
			r.RSS[name] = max(r.RSS[name], s.rss[name])
		}
	}
	var took []int64
	seen := []int64{a.at.UnixNano()} // what ends after the last one is of the next line
	for _, p := range w.probes {
		if a.at.UnixNano() <= p.At && p.At <= b.at.UnixNano() {
			took, seen = append(took, p.Took), append(seen, p.At)
		}
	}
	if len(took) == 0 {
		r.Stalls++
	}
	slices.Sort(seen)
	for i := range seen[1:] {
		if seen[i+1]-seen[i] > int64(stallAfter) {
			r.Stalls++
		}
	}
	slices.Sort(took)
	if n := len(took); n > 0 {
		r.VisibleP50, r.VisibleP99 = float64(took[(n-1)*50/100])/1e6, float64(took[(n-1)*99/100])/1e6
	}
	return r
}
