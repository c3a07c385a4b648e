package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// held is what -load found.
type held struct {
	Target  string  `json:"target"`
	Streams int     `json:"streams"`
	Engines int     `json:"engines"`
	Seconds int     `json:"seconds"`
	Ended   int     `json:"streams_ended"`
	Ideal   float64 `json:"ideal_ms"` // what a stream takes by its chunks' times
	P50     float64 `json:"p50_ms"`
	P99     float64 `json:"p99_ms"`
	P999    float64 `json:"p999_ms"`
	Max     float64 `json:"max_ms"`
	Failed  int     `json:"failed"`
	CPU     float64 `json:"router_cpu_share"` // of one thread
	// Resident memory of the router in MiB: after a tenth of the time, half of it, at
	// the end, and the most in between.
	Memory [3]float64 `json:"resident_mib"`
	Most   float64    `json:"resident_most_mib"`
	// Growth is how fast it grew in the second half of the time, by all that was seen then.
	Growth float64 `json:"resident_growth_mib_per_minute"`
}

// hold keeps many streams open at once, and then half of them for -half.
func (s *scene) hold(ctx context.Context, stdout io.Writer) error {
	name, path, _ := strings.Cut(s.routers[0], "=")
	for _, publishing := range []bool{false, true} {
		of := name
		if publishing {
			of += "+events"
		}
		if !strings.Contains(of, s.only) {
			continue
		}
		list, err := s.fleet(ctx, publishing, nil)
		if err != nil {
			return err
		}
		if err := s.router(ctx, of, path, list); err != nil {
			return err
		}
	}
	for i := range s.targets {
		for _, phase := range []struct{ streams, seconds int }{{s.load, s.seconds}, {s.load / 2, s.half}} {
			if phase.streams*phase.seconds == 0 {
				continue
			}
			h, err := s.holdAt(ctx, &s.targets[i], phase.streams, phase.seconds)
			if err != nil {
				return err
			}
			if err := json.NewEncoder(stdout).Encode(h); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *scene) holdAt(ctx context.Context, t *target, streams, seconds int) (h held, err error) {
	h = held{Target: t.name, Streams: streams, Engines: s.options.engines, Seconds: seconds,
		Ideal: (time.Duration(s.chunks-1) * s.pause).Seconds() * 1e3}
	watching, stop := context.WithCancel(ctx)
	seen := make(chan []float64)
	every := max(time.Duration(seconds)*time.Second/200, 10*time.Millisecond)
	go func() { seen <- memory(watching, t.pid, every) }()
	before := cpu(t.pid)
	c, err := s.wrkAt(ctx, t, shape{form: "stream", connections: streams}, seconds)
	stop()
	m := <-seen
	if err != nil {
		return h, err
	}
	h.Ended, h.P50, h.P99, h.P999, h.Max, h.Failed = c.Requests, c.P50, c.P99, c.P999, c.Max, c.Failed
	h.CPU = (cpu(t.pid) - before).Seconds() / c.Seconds
	if len(m) > 0 {
		h.Memory = [3]float64{m[len(m)/10], m[len(m)/2], m[len(m)-1]}
		h.Growth = slope(m[len(m)/2:]) * float64(time.Minute) / float64(every)
		for _, v := range m {
			h.Most = max(h.Most, v)
		}
	}
	return h, nil
}

// slope is how much more each value is than the one before, by least squares.
func slope(values []float64) float64 {
	mid, sum, all := float64(len(values)-1)/2, 0.0, 0.0
	for i, v := range values {
		d := float64(i) - mid
		sum, all = sum+d*v, all+d*d
	}
	return sum / max(all, 1)
}

// memory notes a process's resident memory in MiB until ctx ends.
func memory(ctx context.Context, pid int, every time.Duration) (seen []float64) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return seen
		case <-tick.C:
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		if err != nil {
			continue
		}
		if f := strings.Fields(string(text)); len(f) > 1 {
			pages, _ := strconv.ParseInt(f[1], 10, 64)
			seen = append(seen, float64(pages)*float64(os.Getpagesize())/(1<<20))
		}
	}
}
