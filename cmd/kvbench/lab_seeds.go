package main

import (
	"context"
	"fmt"
	"io"
)

// figure is one of a row's numbers that differ between seeds.
type figure struct {
	name   string
	of     func(*labRow) *float64 // nil where it does not apply
	digits int
}

func figures() []figure {
	return []figure{
		{"within", func(r *labRow) *float64 { return r.Within }, 4},
		{"reuse", func(r *labRow) *float64 { return &r.Reuse }, 4},
		{"loaded", func(r *labRow) *float64 { return &r.Loaded }, 4},
		{"ttft_mean_ms", func(r *labRow) *float64 { return &r.TTFTMean }, 2},
		{"ttft_p50_ms", func(r *labRow) *float64 { return &r.TTFTP50 }, 2},
		{"ttft_p99_ms", func(r *labRow) *float64 { return &r.TTFTP99 }, 2},
		{"tpot_mean_ms", func(r *labRow) *float64 { return &r.TPOTMean }, 3},
		{"e2e_mean_ms", func(r *labRow) *float64 { return &r.E2EMean }, 1},
		{"e2e_p99_ms", func(r *labRow) *float64 { return &r.E2EP99 }, 1},
		{"output_tokens_per_s", func(r *labRow) *float64 { return &r.OutputPerSecond }, 1},
		{"load_max_over_mean", func(r *labRow) *float64 { return &r.LoadMaxOverMean }, 3},
		{"waiting_mean_ms", func(r *labRow) *float64 { return &r.Waiting }, 1},
		{"computing_mean_ms", func(r *labRow) *float64 { return &r.Computing }, 1},
		{"decoding_mean_ms", func(r *labRow) *float64 { return &r.Decoding }, 1},
		{"preempted_mean_ms", func(r *labRow) *float64 { return &r.Preempted }, 1},
		{"session_mean_s", func(r *labRow) *float64 { return &r.SessionMean }, 2},
		{"session_p99_s", func(r *labRow) *float64 { return &r.SessionP99 }, 2},
		{"preemptions", func(r *labRow) *float64 { return &r.Preemptions }, 1},
		{"seconds", func(r *labRow) *float64 { return &r.Seconds }, 3},
	}
}

// overSeeds runs one policy with as many seeds as are asked for, from the one
// that is set on.
func (o *labOptions) overSeeds(ctx context.Context, policy string, stderr io.Writer) (labRow, error) {
	first := o.cfg.Seed
	defer func() { o.cfg.Seed = first }()
	rows := make([]labRow, 0, o.seeds)
	for i := range o.seeds {
		o.cfg.Seed = first + uint64(i)
		row, err := o.one(ctx, policy, stderr)
		if err != nil {
			return row, err
		}
		rows = append(rows, row)
	}
	return meanOf(rows), nil
}

// meanOf makes the rows of several seeds one: of each figure the mean, and its
// least and greatest in Spread; of refused requests the most.
func meanOf(rows []labRow) labRow {
	if len(rows) == 1 {
		return rows[0]
	}
	m := rows[0]
	m.Seeds, m.Spread = len(rows), make(map[string][2]float64)
	var requests int
	var events uint64
	for _, r := range rows {
		requests, events, m.Refused = requests+r.Requests, events+r.Events, max(m.Refused, r.Refused)
	}
	m.Requests, m.Events = requests/len(rows), events/uint64(len(rows))
	if m.Within != nil {
		m.Within = new(float64) // not the first row's
	}
	for _, f := range figures() {
		if f.of(&m) == nil {
			continue
		}
		sum, spread := 0.0, [2]float64{*f.of(&rows[0]), *f.of(&rows[0])}
		for i := range rows {
			v := *f.of(&rows[i])
			sum, spread[0], spread[1] = sum+v, min(spread[0], v), max(spread[1], v)
		}
		*f.of(&m) = decimals(sum/float64(len(rows)), f.digits)
		if spread[1] != 0 {
			m.Spread[f.name] = spread
		}
	}
	return m
}

// spread is what the table says of a row of several seeds.
func (r *labRow) spread() string {
	if r.Seeds == 0 {
		return ""
	}
	t, e := r.Spread["ttft_mean_ms"], r.Spread["e2e_p99_ms"]
	return fmt.Sprintf(" %d seeds: ttft mean %.1f … %.1f, e2e p99 %.0f … %.0f", r.Seeds, t[0], t[1], e[0], e[1])
}
