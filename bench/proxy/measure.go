package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

//go:embed chat.lua
var chat string

//go:embed done.lua
var done string // the end of each script

//go:embed pace.lua
var pace string // before a script whose requests go at a rate

// line is one measurement, as it is printed.
type line struct {
	Round  int     `json:"round"`
	Target string  `json:"target"`
	Load   string  `json:"load"` // whole-8: whole answers on 8 connections
	Rate   float64 `json:"per_s"`
	CPU    float64 `json:"router_cpu_us"` // of the router's process, each request; -1: unknown
	counted
}

// counted is what chat.lua prints.
type counted struct {
	Requests int     `json:"requests"`
	Seconds  float64 `json:"seconds"`
	P50      float64 `json:"p50_ms"`
	P99      float64 `json:"p99_ms"`
	P999     float64 `json:"p999_ms"`
	Max      float64 `json:"max_ms"`
	Failed   int     `json:"failed"`
}

// shape is a kind of load.
type shape struct {
	form        string // of chat.lua
	connections int
	path        string // of another request than a chat, with this body
	body        []byte
}

func (s shape) String() string {
	switch {
	case s.path != "":
		return s.path
	case s.form == "":
		return fmt.Sprintf("whole-%d", s.connections)
	}
	return fmt.Sprintf("%s-%d", s.form, s.connections)
}

// chats are the loads of a router.
func chats() []shape {
	return []shape{{connections: 8}, {form: "stream", connections: 8}, {connections: 1}, {form: "stream", connections: 1}}
}

// measure measures all targets in turns.
func (s *scene) measure(ctx context.Context, stdout io.Writer, loads []shape) error {
	if s.serve {
		for _, t := range s.targets {
			fmt.Fprintln(stdout, t.name, t.address)
		}
		<-ctx.Done()
		return nil
	}
	var lines []line
	for round := range s.rounds {
		for _, sh := range loads {
			for i := range s.targets {
				t := &s.targets[(i+round)%len(s.targets)]
				if !strings.Contains(t.name+"/"+sh.String(), s.only) {
					continue
				}
				if round == 0 { // warm
					if _, err := s.wrkAt(ctx, t, sh, 1); err != nil {
						return err
					}
				}
				before := cpu(t.pid)
				c, err := s.wrkAt(ctx, t, sh, s.seconds)
				if err != nil {
					return err
				}
				l := line{Round: round, Target: t.name, Load: sh.String(), Rate: float64(c.Requests) / c.Seconds, CPU: -1, counted: c}
				if after := cpu(t.pid); after > before {
					l.CPU = float64((after - before).Microseconds()) / float64(c.Requests)
				}
				lines = append(lines, l)
				if err := json.NewEncoder(stdout).Encode(l); err != nil {
					return err
				}
			}
		}
	}
	return table(stdout, lines)
}

// wrkAt runs wrk for so many seconds.
func (s *scene) wrkAt(ctx context.Context, t *target, sh shape, seconds int) (c counted, err error) {
	script, path := chat+done, "/v1/chat/completions"
	body := filepath.Join(s.dir, "body")
	if sh.path != "" {
		script, path = queries+done, sh.path
		if err := os.WriteFile(body, sh.body, 0o600); err != nil {
			return c, err
		}
	}
	if s.pace > 0 {
		script = pace + script
	}
	file := filepath.Join(s.dir, "wrk.lua")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		return c, err
	}
	cmd := exec.CommandContext(ctx, s.wrk, "-t1", "-c"+strconv.Itoa(sh.connections), "-d"+strconv.Itoa(seconds)+"s", "--timeout", "60s", "--latency", //nolint:gosec // what the user named
		"-s", file, "http://"+t.address+path, "--", sh.form)
	cmd.Env = append(os.Environ(), "BODY="+body, "PACE="+strconv.Itoa(s.pace))
	out, err := cmd.Output()
	if err != nil {
		return c, fmt.Errorf("wrk at %s: %w", t.name, err)
	}
	last := out[bytes.LastIndexByte(bytes.TrimSpace(out), '\n')+1:]
	if err := json.Unmarshal(last, &c); err != nil {
		return c, fmt.Errorf("wrk says at its end %q: %w", last, err)
	}
	if c.Requests == 0 || c.Failed > 0 {
		return c, fmt.Errorf("of %d requests to %s %d failed", c.Requests, t.name, c.Failed)
	}
	return c, nil
}

// cpu returns the processor time of a process; 0 where it is unknown.
func cpu(pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	f := strings.Fields(rest)
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// median of the values, and the least and most.
func median(v []float64) (m, least, most float64) {
	slices.Sort(v)
	return v[len(v)/2], v[0], v[len(v)-1]
}

// table prints medians, and what part they are of the peer's, smg's or Dynamo's.
func table(w io.Writer, lines []line) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "load\ttarget\ta second\tof peer\tp50 ms\tadded\tp99 ms\trouter's CPU, µs")
	value := func(load, target string, of func(l *line) float64) []float64 {
		var v []float64
		for i := range lines {
			if l := &lines[i]; l.Load == load && l.Target == target {
				v = append(v, of(l))
			}
		}
		return v
	}
	var loads, targets []string
	for _, l := range lines {
		if !slices.Contains(loads, l.Load) {
			loads = append(loads, l.Load)
		}
		if !slices.Contains(targets, l.Target) {
			targets = append(targets, l.Target)
		}
	}
	rate := func(l *line) float64 { return l.Rate }
	p50 := func(l *line) float64 { return l.P50 }
	for _, load := range loads {
		for _, target := range targets {
			v := value(load, target, rate)
			if len(v) == 0 {
				continue
			}
			m, least, most := median(v)
			fmt.Fprintf(out, "%s\t%s\t%.0f [%.0f–%.0f]\t", load, target, m, least, most)
			if peer := append(value(load, "smg", rate), value(load, "dynamo", rate)...); len(peer) > 0 {
				of, _, _ := median(peer)
				fmt.Fprintf(out, "%.2f", m/of)
			}
			m, _, _ = median(value(load, target, p50))
			fmt.Fprintf(out, "\t%.3f\t", m)
			if direct := value(load, "direct", p50); len(direct) > 0 && target != "direct" {
				of, _, _ := median(direct)
				fmt.Fprintf(out, "%.3f", m-of)
			}
			m, least, most = median(value(load, target, func(l *line) float64 { return l.P99 }))
			fmt.Fprintf(out, "\t%.2f [%.2f–%.2f]\t", m, least, most)
			if m, _, _ = median(value(load, target, func(l *line) float64 { return l.CPU })); m >= 0 {
				fmt.Fprintf(out, "%.0f", m)
			}
			fmt.Fprintln(out)
		}
	}
	return out.Flush()
}
