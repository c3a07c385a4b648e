package lab

import (
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/route"
)

// rivals are the policies of other projects, as their documents give them; what differs
// is said at each. All see what the index knows, exactly and at once, which is kind to them.
func rivals() map[string]func(*sim) route.Policy {
	return map[string]func(*sim) route.Policy{
		"smg":           func(*sim) route.Policy { return smg{} },
		"llm-d":         func(s *sim) route.Policy { return &llmd{state: s.engineState} },
		"llm-d-lmetric": func(*sim) route.Policy { return llmdLMetric{} },
	}
}

// indexed is what the policies here have in common.
type indexed struct{}

func (indexed) UsesIndex(*route.Weighing) bool { return true }

func (indexed) Formula(_ *route.Weighing, c *route.Candidate) string {
	return fmt.Sprintf("%g", c.Cost)
}

// dynamoOptions is Dynamo 1.6.1's cost with the options that are off by default, in blocks:
//
//	scale × max(0, prompt tokens queued and own − credit × decayed × cached) + blocks in use + requests × live
//
// decayed is 1/(1 + decay × backlog), where backlog is by how much the worker's queued
// prompt tokens exceed the least loaded one's, in prompts of this length.
type dynamoOptions struct {
	credit, decay, requests float64
}

func (d dynamoOptions) UsesIndex(w *route.Weighing) bool {
	return w.Settings.PrefillLoadScale > 0 && d.credit > 0
}

func (d dynamoOptions) Choose(w *route.Weighing, cands []route.Candidate) (int, error) {
	size := float64(w.BlockSize)
	least := cands[0].PrefillTokens - cands[0].NewTokens
	for i := range cands {
		least = min(least, cands[i].PrefillTokens-cands[i].NewTokens)
	}
	prompt := max(1, float64((w.PromptTokens+w.BlockSize-1)/w.BlockSize))
	for i := range cands {
		c := &cands[i]
		queued := c.PrefillTokens - c.NewTokens
		backlog := float64(queued-least) / size / prompt
		saved := d.credit / (1 + d.decay*backlog) * float64(w.PromptTokens-c.NewTokens)
		prefill := max(0, (float64(queued+w.PromptTokens)-saved)/size)
		c.Cost = w.Settings.PrefillLoadScale*prefill + c.DecodeBlocks + d.requests*float64(c.Requests)
	}
	return w.Lowest(cands), nil
}

func (d dynamoOptions) Formula(_ *route.Weighing, c *route.Candidate) string {
	return indexed{}.Formula(nil, c)
}

// smg is the cache-aware policy of SMG's gateway with its defaults: the worker with the
// longest match if that is more than 0.3 of the prompt, else the least loaded; the least
// loaded in any case while the most loaded worker has more than 64 requests more, and more
// than 1.5 times as many, as that. Of equal matches the less loaded one is taken.
type smg struct{ indexed }

const (
	smgMatch     = 0.3
	smgBalance   = 64
	smgImbalance = 1.5
)

func (smg) Choose(w *route.Weighing, cands []route.Candidate) (int, error) {
	least, most, longest := cands[0].Requests, 0, 0
	for i := range cands {
		c := &cands[i]
		least, most, longest = min(least, c.Requests), max(most, c.Requests), max(longest, c.CachedTokens)
	}
	balanced := most-least <= smgBalance || float64(most) <= smgImbalance*float64(least)
	follow := balanced && float64(longest) > smgMatch*float64(w.PromptTokens)
	for i := range cands {
		c := &cands[i]
		c.Cost = float64(c.Requests)
		if follow && c.CachedTokens < longest {
			c.Cost += float64(most) + 1 // behind all that match as much as can be
		}
	}
	return w.Lowest(cands), nil
}

// llmd is llm-d's precise prefix cache guide: the highest of twice the part of the prompt's
// blocks that match, the part of the cache that is not in use, and how short the queue is
// between the longest and the shortest. The engine's figures are as old as those that its
// router fetches every 50 ms.
type llmd struct {
	indexed
	state func(worker int) (waiting int, use float64)
	at    time.Time
	seen  []engineState
}

type engineState struct {
	waiting int
	use     float64
}

const llmdRefresh = 50 * time.Millisecond

func (p *llmd) Choose(w *route.Weighing, cands []route.Candidate) (int, error) {
	if p.at.IsZero() || w.Now.Sub(p.at) >= llmdRefresh {
		p.at, p.seen = w.Now, p.seen[:0]
	}
	least, most := 0, 0
	for i := range cands {
		id := int(cands[i].Worker)
		for n := len(p.seen); n <= id; n++ {
			waiting, use := p.state(n)
			p.seen = append(p.seen, engineState{waiting, use})
		}
		q := p.seen[id].waiting
		if i == 0 {
			least = q
		}
		least, most = min(least, q), max(most, q)
	}
	blocks := w.PromptTokens / w.BlockSize
	for i := range cands {
		c := &cands[i]
		seen, match, queue := p.seen[c.Worker], 0.0, 1.0
		if blocks > 0 {
			match = float64(c.CachedTokens/w.BlockSize) / float64(blocks)
		}
		if most > least {
			queue = float64(most-seen.waiting) / float64(most-least)
		}
		c.Cost = -(2*match + 1 - seen.use + queue)
	}
	return w.Lowest(cands), nil
}

// engineState is what a worker's engine says of itself.
func (s *sim) engineState(worker int) (waiting int, use float64) {
	if e := s.workers[worker].engine; e != nil {
		return e.Waiting(), float64(e.Used()) / float64(s.cfg.Engine.Blocks)
	}
	return 0, 0
}

// llmdLMetric is llm-d's own form of LMetric (see prefill-x-batch of package route), which
// leaves out the prompts that are queued: blocks to be computed × requests with this one.
type llmdLMetric struct{ indexed }

func (llmdLMetric) Choose(w *route.Weighing, cands []route.Candidate) (int, error) {
	for i := range cands {
		c := &cands[i]
		blocks := w.PromptTokens/w.BlockSize - c.CachedTokens/w.BlockSize
		c.Cost = float64(blocks*w.BlockSize) * float64(c.Requests+1)
	}
	return w.Lowest(cands), nil
}
