package fleet

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/registry"
)

// Why a prefill worker and another one are not paired.
const (
	ApartTransfer = "transfer" // prompts are handed over in another way than the other worker takes them
	ApartEngine   = "engine"   // one of the two is an engine of a kind that does not know the way
	ApartLost     = "lost"     // prompts did not come, one after the other
)

// Aparts returns all of them.
func Aparts() []string { return []string{ApartTransfer, ApartEngine, ApartLost} }

// pair names a prefill worker and another one.
type pair struct{ prefill, decode uint64 }

// pairs is which pairs of a model are not made. What registrations and engines say of that is read from the model's
// engines; what became of prompts is owned here. mu is taken below Fleet.mu, and above the Router's lock.
type pairs struct {
	mu   sync.Mutex
	lost map[pair]losses               // pairs whose last prompt was lost
	out  atomic.Pointer[map[pair]bool] // of these, who is left out; replaced as a whole
	said map[string]int                // how many of each reason were logged last
}

// losses are the prompts that were lost one after the other, and until when the pair is left out for it.
type losses struct {
	row   int
	until time.Time
}

// side is what counts of one of a pair.
type side struct {
	way  registry.KVTransfer
	kind string // of engine; "" if it is not known
}

// kinds of engines that are known by how they own their models.
var kinds = []string{"vllm", "sglang", "tensorrt_llm"}

func (e *Engine) side() side {
	s := side{way: e.Stated}
	if e.Prefill {
		s.way = e.Transfer
	}
	if k := e.Owned(); slices.Contains(kinds, k) {
		s.kind = k
	}
	return s
}

// apart says why no prompt gets from one to the other; "" if nothing speaks against it.
func apart(from, to side) string {
	other := func(kind string) bool { return kind != "" && from.way.Engine() != "" && kind != from.way.Engine() }
	switch {
	case !from.way.Reaches(to.way):
		return ApartTransfer
	case other(from.kind), other(to.kind):
		return ApartEngine
	}
	return ""
}

// Apart says why the two are not paired; "" if they may be.
func (m *Model) Apart(prefill, decode *Engine) string {
	if why := apart(prefill.side(), decode.side()); why != "" {
		return why
	}
	if out := m.pairs.out.Load(); out != nil && (*out)[pair{prefill.ID, decode.ID}] {
		return ApartLost
	}
	return ""
}

// isApart is what the Router asks, with its lock held.
func (m *Model) isApart(prefill, decode uint64) bool {
	p, d := m.Engine(prefill), m.Engine(decode)
	return p != nil && d != nil && m.Apart(p, d) != ""
}

// AllApart counts the pairs that are not made, by reason, and all that there could be.
func (m *Model) AllApart() (why map[string]int, all int) {
	why = map[string]int{}
	var sides [2]map[side]int
	sides[0], sides[1] = map[side]int{}, map[side]int{}
	for _, e := range m.Engines() {
		if e.Prefill {
			sides[0][e.side()]++
		} else {
			sides[1][e.side()]++
		}
	}
	for from, n := range sides[0] {
		for to, k := range sides[1] {
			all += n * k
			if by := apart(from, to); by != "" {
				why[by] += n * k
			}
		}
	}
	if out := m.pairs.out.Load(); out != nil {
		for p := range *out {
			from, to := m.Engine(p.prefill), m.Engine(p.decode)
			if from != nil && to != nil && apart(from.side(), to.side()) == "" {
				why[ApartLost]++
			}
		}
	}
	return why, all
}

// arrange tells the Router which pairs not to make, after whatever may have changed that, and the log what is new of it.
func (f *Fleet) arrange(m *Model) {
	m.pairs.mu.Lock()
	defer m.pairs.mu.Unlock()
	why, all := m.AllApart()
	if len(why) == 0 {
		m.Router.SetApart(nil)
	} else {
		m.Router.SetApart(m.isApart)
	}
	for _, by := range Aparts() {
		if why[by] > m.pairs.said[by] {
			p, d := m.example(by)
			f.log.Warn("prefill and decode workers that cannot hand prompts over are not paired", "model", m.Space.Model, "reason", by,
				"pairs", why[by], "of", all, "prefill_worker", p.ID, "hands_over", p.Transfer, "engine", p.side().kind,
				"decode_worker", d.ID, "takes", d.Stated, "its_engine", d.side().kind)
		}
	}
	m.pairs.said = why
}

// example returns a pair that is not made for the reason, the first one by their ids.
func (m *Model) example(why string) (p, d *Engine) {
	p, d = &Engine{}, &Engine{}
	for _, from := range m.Engines() {
		for _, to := range m.Engines() {
			if from.Prefill && !to.Prefill && m.Apart(from, to) == why &&
				(p.model == nil || from.ID < p.ID || from.ID == p.ID && to.ID < d.ID) {
				p, d = from, to
			}
		}
	}
	return p, d
}

// HandedOver is told what became of a prompt that a prefill worker computed for another worker. A pair whose prompts are
// lost one after the other is left out for a while; after that one more that is lost has it left out again.
func (f *Fleet) HandedOver(m *Model, prefill, decode uint64, came bool) {
	k := pair{prefill, decode}
	if came && !m.pairs.has(k) {
		return // as nearly always
	}
	f.changePairs(m, func(lost map[pair]losses, now time.Time) {
		l := lost[k]
		switch l.row++; {
		case came, m.Engine(prefill) == nil, m.Engine(decode) == nil: // who has left is forgotten, or will be
			delete(lost, k)
		case f.cfg.PairLosses > 0 && l.row >= f.cfg.PairLosses:
			lost[k] = losses{f.cfg.PairLosses - 1, now.Add(f.cfg.PairRest)}
		default:
			lost[k] = l
		}
	})
}

func (p *pairs) has(k pair) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, has := p.lost[k]
	return has
}

// forgetPairs drops what became of a worker's prompts: it has left, or is another one now.
func (f *Fleet) forgetPairs(m *Model, worker uint64) {
	f.changePairs(m, func(lost map[pair]losses, _ time.Time) {
		maps.DeleteFunc(lost, func(k pair, _ losses) bool { return k.prefill == worker || k.decode == worker })
	})
}

// changePairs changes what became of prompts, and has the Router told if other pairs are left out for it now.
func (f *Fleet) changePairs(m *Model, change func(lost map[pair]losses, now time.Time)) {
	now := time.Now()
	m.pairs.mu.Lock()
	if m.pairs.lost == nil {
		m.pairs.lost = map[pair]losses{}
	}
	change(m.pairs.lost, now)
	out := map[pair]bool{}
	for k, l := range m.pairs.lost {
		if now.Before(l.until) {
			out[k] = true
		}
	}
	was := m.pairs.out.Swap(&out)
	m.pairs.mu.Unlock()
	if len(out) > 0 || was != nil && len(*was) > 0 {
		f.arrange(m)
	}
}
