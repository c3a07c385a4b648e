package main

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// page writes the tables of what is done.
func (o *labTableOptions) page(w io.Writer) error {
	p := &labPage{o: o}
	p.f("# Routing policies on the lab's settings\n\n" +
		"Written by `make lab-table`; what the rows are, and what follows from them: [routing.md](routing.md). Means over the\n" +
		"seeds named, ± half of what lies between the least and the greatest. Seeds also start the agents' sessions at other times.\n")
	p.verdict()
	group := ""
	settings := labSettings()
	for i := range settings {
		s := &settings[i]
		if s.group == robustness || !p.any(s) {
			continue
		}
		if s.group != group {
			group = s.group
			p.f("\n## %s\n", group)
		}
		p.setting(s)
	}
	p.robust(settings)
	_, err := io.WriteString(w, p.b.String())
	if err != nil {
		return fmt.Errorf("write the tables: %w", err)
	}
	return nil
}

type labPage struct {
	o *labTableOptions
	b strings.Builder
}

func (p *labPage) f(format string, args ...any) { fmt.Fprintf(&p.b, format, args...) }

func (p *labPage) row(s *labSetting, policy string) (labRow, bool) {
	r, ok := p.o.done[key(s, policy)]
	return r, ok
}

func (p *labPage) any(s *labSetting) bool {
	for policy := range strings.SplitSeq(s.rows, ",") {
		if _, ok := p.row(s, policy); ok {
			return true
		}
	}
	return false
}

// figure is a number with half of its spread, if that would be seen.
func (p *labPage) figure(r *labRow, name string, v, per float64, digits int) string {
	text := fmt.Sprintf("%.*f", digits, v/per)
	if s, ok := r.Spread[name]; ok {
		if half := fmt.Sprintf("%.*f", digits, (s[1]-s[0])/2/per); strings.Trim(half, "0.") != "" {
			text += "±" + half
		}
	}
	return text
}

func (p *labPage) setting(s *labSetting) {
	closed := s.group == closedLoop
	last := "over the bound"
	if closed {
		last = "session s"
	}
	seeds := 1
	for policy := range strings.SplitSeq(s.rows, ",") {
		r, _ := p.row(s, policy)
		seeds = max(seeds, r.Seeds)
	}
	p.f("\n### %s\n\n`%s`, seeds: %d\n\n| row | reuse | first token ms, mean | p99 | end s, mean | p99 | preemptions | load | %s |\n|---|---|---|---|---|---|---|---|---|\n", s.name, strings.TrimSpace(strings.ReplaceAll(s.args, "TRACES/", "")), seeds, last)
	bound, bounded := p.row(s, "bound-wspt")
	for policy := range strings.SplitSeq(s.rows, ",") {
		r, ok := p.row(s, policy)
		if !ok {
			continue
		}
		end := ""
		switch {
		case closed:
			end = p.figure(&r, "session_mean_s", r.SessionMean, 1, 1)
		case bounded && bound.TTFTMean > 0:
			end = fmt.Sprintf("%+.0f %%", 100*(r.TTFTMean/bound.TTFTMean-1))
		}
		load := fmt.Sprintf("%.2f", r.LoadMaxOverMean)
		if strings.HasPrefix(policy, "bound-") {
			load = ""
		}
		p.f("| %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", policy, p.figure(&r, "reuse", r.Reuse, 1, 3),
			p.figure(&r, "ttft_mean_ms", r.TTFTMean, 1, 1), p.figure(&r, "ttft_p99_ms", r.TTFTP99, 1, 0),
			p.figure(&r, "e2e_mean_ms", r.E2EMean, 1000, 2), p.figure(&r, "e2e_p99_ms", r.E2EP99, 1000, 1),
			p.figure(&r, "preemptions", r.Preemptions, 1, 0), load, end)
	}
}

// verdict sets auto beside the best of the others, setting by setting.
func (p *labPage) verdict() {
	p.f("\n## `auto` beside the best of the others\n\n" +
		"Mean time to the first token in ms: of `auto`, of the best row of Dynamo and of the best of all others. And p99 to the end in s:\n" +
		"of `auto`, and of the better of round robin and Dynamo's default.\n\n" +
		"| setting | auto | best Dynamo | best other | auto over the best | bound | end p99: auto | round robin, Dynamo | over it |\n|---|---|---|---|---|---|---|---|---|\n")
	sum, worse, n := 0.0, 0.0, 0
	settings := labSettings()
	for i := range settings {
		s := &settings[i]
		auto, ok := p.row(s, "auto")
		if !ok || s.group == robustness {
			continue
		}
		dynamo, dynamoName := p.best(s, func(policy string) bool { return strings.HasPrefix(policy, "dynamo") })
		other, otherName := p.best(s, func(policy string) bool {
			return policy != "auto" && !strings.HasPrefix(policy, "dynamo") && !strings.HasPrefix(policy, "bound-")
		})
		best := math.Min(dynamo, other)
		rr, _ := p.row(s, "round-robin")
		def, _ := p.row(s, "dynamo")
		tail := rr.E2EP99
		if def.E2EP99 > 0 && (tail == 0 || def.E2EP99 < tail) {
			tail = def.E2EP99
		}
		if math.IsInf(best, 1) || tail == 0 {
			continue
		}
		bound := ""
		if b, ok := p.row(s, "bound-wspt"); ok {
			bound = fmt.Sprintf("%.1f", b.TTFTMean)
		}
		p.f("| %s | %.1f | %.1f %s | %.1f %s | %+.1f %% | %s | %.1f | %.1f | %+.1f %% |\n", shortName(s), auto.TTFTMean, dynamo, short(dynamoName), other, otherName,
			100*(auto.TTFTMean/best-1), bound, auto.E2EP99/1000, tail/1000, 100*(auto.E2EP99/tail-1))
		sum, worse, n = sum+math.Log(auto.TTFTMean/best), worse+math.Log(auto.E2EP99/tail), n+1
	}
	if n > 0 {
		p.f("\nIn the mean over %d settings (of the ratios, geometric) `auto`'s time to the first token is %+.1f %% beside the best of all\nother rows, a row to each setting, and its p99 to the end %+.1f %% beside the better of round robin and Dynamo's default.\n",
			n, 100*(math.Exp(sum/float64(n))-1), 100*(math.Exp(worse/float64(n))-1))
	}
}

func (p *labPage) best(s *labSetting, of func(policy string) bool) (ms float64, name string) {
	ms = math.Inf(1)
	for policy := range strings.SplitSeq(s.rows, ",") {
		if r, ok := p.row(s, policy); ok && of(policy) && r.TTFTMean < ms {
			ms, name = r.TTFTMean, policy
		}
	}
	return ms, name
}

func shortName(s *labSetting) string {
	group, _, _ := strings.Cut(s.group, " ")
	return strings.ToLower(strings.TrimSuffix(group, ",")) + ", " + s.name
}

func short(policy string) string { return strings.TrimPrefix(policy, "dynamo-") }

// robust sets each thing that is wrong beside nothing wrong.
func (p *labPage) robust(settings []labSetting) {
	var usual *labSetting
	for i := range settings {
		s := &settings[i]
		if s.group != robustness || !p.any(s) {
			continue
		}
		if usual == nil {
			usual = s
			p.f("\n## %s\n\nMean to the first token in ms (beside nothing wrong) · p99 to the end in s.\n\n| what is wrong |", robustness)
			for policy := range strings.SplitSeq(robustRows, ",") {
				p.f(" %s |", policy)
			}
			p.f("\n|---%s\n", strings.Repeat("|---", 1+strings.Count(robustRows, ","))+"|")
		}
		p.f("| %s |", s.name)
		for policy := range strings.SplitSeq(robustRows, ",") {
			r, ok := p.row(s, policy)
			if !ok {
				p.f(" |")
				continue
			}
			beside := ""
			if u, ok := p.row(usual, policy); ok && s != usual && u.TTFTMean > 0 {
				beside = fmt.Sprintf(" (%+.0f %%)", 100*(r.TTFTMean/u.TTFTMean-1))
			}
			p.f(" %s%s · %s |", p.figure(&r, "ttft_mean_ms", r.TTFTMean, 1, 0), beside, p.figure(&r, "e2e_p99_ms", r.E2EP99, 1000, 1))
		}
		p.f("\n")
	}
}
