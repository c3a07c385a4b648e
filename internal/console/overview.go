package console

import (
	"bytes"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/route/account"
)

// overview is the event of that name.
type overview struct {
	Program   string      `json:"program"`
	Version   string      `json:"version"`
	Replica   string      `json:"replica"`
	Now       int64       `json:"now_ms"`          // when the frame was made
	Started   int64       `json:"started_ms"`      // the process
	Sampled   int64       `json:"sampled_ms"`      // when all that is in it was looked at
	AsOf      *int64      `json:"events_as_of_ms"` // when NATS was heard last; null: it is heard
	Ready     bool        `json:"ready"`
	NotReady  []string    `json:"not_ready"`
	Totals    totals      `json:"totals"`
	Attention []attention `json:"attention"`
}

// totals are sums over all that the reader may see; nil is unknown, or nothing that the
// program has.
type totals struct {
	Workers    int      `json:"workers"`
	Ranks      int      `json:"ranks"`
	Blocks     int      `json:"blocks"`
	Requests   *float64 `json:"requests_per_s"`
	Events     *float64 `json:"events_per_s"`
	BlockOps   *float64 `json:"blocks_per_s"`
	Lookups    *float64 `json:"lookups_per_s"`
	Lag        *uint64  `json:"lag_messages"`
	Resident   *int64   `json:"rss_bytes"`
	First50    *float64 `json:"first_token_p50_ms"`
	First99    *float64 `json:"first_token_p99_ms"`
	PromptRate *float64 `json:"prompt_tokens_per_s"`
	Reachable  *float64 `json:"reachable"`
	Selected   *float64 `json:"selected"`
	Actual     *float64 `json:"actual"`
}

// attention says which workers are in a state that needs it.
type attention struct {
	Kind    string   `json:"kind"`
	Count   int      `json:"count"` // of ranks
	Workers []string `json:"workers"`
	More    int      `json:"more"` // workers that are not named
	Say     string   `json:"say"`

	last uint64 // worker that was counted
}

const maxNamed = 5

// counters returns what a space has counted.
func (s *sampler) counters(sp *space) counters {
	c := counters{events: sp.events}
	if x := s.cfg.Replica.Set().Lookup(sp.Space); x != nil {
		for _, n := range x.Stats().BlockOps {
			c.blocks += n
		}
	}
	if !sp.model {
		return c
	}
	for _, m := range s.cfg.Models() {
		if m.Space != sp.Space {
			continue
		}
		c.chosen = m.Router.Stats().Chosen
		t := m.Router.Totals()
		c.prompt = t.Reported.Prompt.Sum + t.Silent.Prompt.Sum
		c.reachable = t.Reported.Reachable.Sum + t.Silent.Reachable.Sum
		c.selected = t.Reported.Selected.Sum + t.Silent.Selected.Sum
		c.reportedPrompt, c.reported = t.Reported.Prompt.Sum, t.Reported.Actual.Sum
		c.first = t.First
	}
	return c
}

// overview returns that of the last look.
func (s *sampler) overview(tenant *string, groups []*group) *overview {
	o := &overview{
		Program: s.cfg.Program, Version: version(), Replica: s.cfg.Replica.Name(), Now: time.Now().UnixMilli(), Started: s.cfg.started.UnixMilli(),
		Sampled: s.at.UnixMilli(), AsOf: moment(s.heard), Ready: true, NotReady: []string{},
	}
	o.Ready, o.NotReady = ready(s.cfg.Health, tenant != nil)
	t := &o.Totals
	t.Ranks, t.Workers = countMembers(groups)
	o.Attention = needing(groups)
	s.addRates(t, tenant)
	if tenant == nil { // what the process has as a whole is no tenant's
		t.Lookups = s.lookups.perSecond()
		if s.rss > 0 {
			rss := s.rss
			t.Resident = &rss
		}
	}
	return o
}

// needing returns what needs attention, the worst first.
func needing(groups []*group) []attention {
	var of [numStates]attention
	for _, g := range groups {
		for _, r := range g.ranks {
			a := &of[r.state]
			if a.Count++; a.Count > 1 && a.last == r.Worker {
				continue
			}
			if a.last = r.Worker; len(a.Workers) < maxNamed {
				a.Workers = append(a.Workers, number(r.Worker))
			} else {
				a.More++
			}
		}
	}
	list := []attention{}
	for st := numStates - 1; st > well; st-- {
		if a := &of[st]; a.Count > 0 {
			a.Kind, a.Say = st.String(), st.say()
			list = append(list, *a)
		}
	}
	return list
}

func countMembers(groups []*group) (ranks, workers int) {
	type key struct {
		space  *space
		worker uint64
	}
	last := key{}
	for _, g := range groups {
		for _, r := range g.ranks {
			ranks++
			if k := (key{g.space, r.Worker}); k != last {
				workers, last = workers+1, k
			}
		}
	}
	return ranks, workers
}

// addRates adds up what the spaces counted of late.
func (s *sampler) addRates(t *totals, tenant *string) {
	var d counters
	var took time.Duration
	routed, read, blocks := false, false, 0
	lagging := uint64(0)
	for _, sp := range s.order {
		if tenant != nil && sp.Group != *tenant {
			continue
		}
		blocks += sp.blocks
		lagging += sp.lag
		routed = routed || sp.model
		from, to, ok := sp.past.span()
		if !ok {
			continue
		}
		read = true
		took = max(took, to.at.Sub(from.at))
		d.events += to.events - from.events
		d.blocks += to.blocks - min(from.blocks, to.blocks)
		d.chosen += to.chosen - min(from.chosen, to.chosen)
		d.prompt += to.prompt - min(from.prompt, to.prompt)
		d.reachable += to.reachable - min(from.reachable, to.reachable)
		d.selected += to.selected - min(from.selected, to.selected)
		d.reportedPrompt += to.reportedPrompt - min(from.reportedPrompt, to.reportedPrompt)
		d.reported += to.reported - min(from.reported, to.reported)
		d.first.AddSince(&to.first, &from.first)
	}
	t.Blocks = blocks
	if s.cfg.Replica.Streams() != nil && connected(s.cfg.Replica) {
		t.Lag = &lagging
	}
	if !read {
		return
	}
	t.Events, t.BlockOps = per(d.events, took), per(d.blocks, took)
	if !routed {
		return
	}
	t.Requests, t.PromptRate = per(d.chosen, took), per(d.prompt, took)
	t.Reachable, t.Selected, t.Actual = ratio(d.reachable, d.prompt), ratio(d.selected, d.prompt), ratio(d.reported, d.reportedPrompt)
	t.First50, t.First99 = quantile(&d.first, 0.5), quantile(&d.first, 0.99)
}

func ratio(a, b uint64) *float64 {
	if b == 0 {
		return nil
	}
	x := float64(a) / float64(b)
	return &x
}

func quantile(t *account.Times, q float64) *float64 {
	ms, ok := t.Quantile(q)
	if !ok {
		return nil
	}
	return &ms
}

// ready returns whether the process is, and why not. Reasons name workers: tenants get
// the conditions' names.
func ready(h *edge.Health, tenant bool) (ok bool, why []string) {
	why = []string{}
	if h == nil {
		return true, why
	}
	if h.Draining() {
		why = append(why, "shutting down")
	}
	for _, c := range h.Checks {
		if c.Note {
			continue
		}
		if reason := c.Reason(); reason != "" {
			if tenant {
				reason = c.Name
			}
			why = append(why, reason)
		}
	}
	return len(why) == 0, why
}

// appendJSON appends a value's form, without an end of line.
func appendJSON(b []byte, v any) []byte {
	return append(b, bytes.TrimSuffix(edge.JSON(v), []byte{'\n'})...)
}

// text returns a text's form in JSON.
func text(s string) []byte { return appendJSON(nil, s) }
