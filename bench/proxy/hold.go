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
}

// hold keeps many streams open at once.
func (s *scene) hold(ctx context.Context, stdout io.Writer) error {
	plain, err := s.fleet(ctx, false, nil)
	if err != nil {
		return err
	}
	publishing, err := s.fleet(ctx, true, nil)
	if err != nil {
		return err
	}
	name, path, _ := strings.Cut(s.routers[0], "=")
	for n, list := range map[string][]place{name: plain, name + "+events": publishing} {
		if err := s.router(ctx, n, path, list); err != nil {
			return err
		}
	}
	for i := range s.targets {
		t := &s.targets[i]
		if !strings.Contains(t.name, s.only) {
			continue
		}
		h, err := s.holdAt(ctx, t)
		if err != nil {
			return err
		}
		if err := json.NewEncoder(stdout).Encode(h); err != nil {
			return err
		}
	}
	return nil
}

func (s *scene) holdAt(ctx context.Context, t *target) (h held, err error) {
	h = held{Target: t.name, Streams: s.load, Engines: s.options.engines, Seconds: s.seconds,
		Ideal: (time.Duration(s.chunks-1) * s.pause).Seconds() * 1e3}
	watching, stop := context.WithCancel(ctx)
	seen := make(chan []float64)
	go func() { seen <- memory(watching, t.pid, time.Duration(s.seconds)*time.Second/200) }()
	before := cpu(t.pid)
	c, err := s.wrkAt(ctx, t, shape{form: "stream", connections: s.load}, s.seconds)
	stop()
	m := <-seen
	if err != nil {
		return h, err
	}
	h.Ended, h.P50, h.P99, h.P999, h.Max, h.Failed = c.Requests, c.P50, c.P99, c.P999, c.Max, c.Failed
	h.CPU = (cpu(t.pid) - before).Seconds() / c.Seconds
	if len(m) > 0 {
		h.Memory = [3]float64{m[len(m)/10], m[len(m)/2], m[len(m)-1]}
		for _, v := range m {
			h.Most = max(h.Most, v)
		}
	}
	return h, nil
}

// memory notes a process's resident memory in MiB until ctx ends.
func memory(ctx context.Context, pid int, every time.Duration) (seen []float64) {
	tick := time.NewTicker(max(every, 10*time.Millisecond))
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
