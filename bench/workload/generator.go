package workload

import (
	"container/heap"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"time"

	"github.com/kvatlas/kvatlas/bench/trace"
)

var kindNames = [...]string{"conversation", "agent", "one-off"}

// Generator is an endless or bounded source of requests.
type Generator struct {
	cfg    Config
	rng    *rand.Rand
	zipf   []float64 // cumulative popularity of the system prompts
	kinds  [3]Session
	weight float64 // sum over kinds
	starts float64 // mean sessions a second

	live    queue // sessions that have another turn, by arrival
	next    time.Duration
	nextID  uint64 // first id that names nothing yet
	started uint64 // sessions
	serial  uint64 // of the next request
}

var _ trace.Source = (*Generator)(nil)

// session is one live session: its next prompt.
type session struct {
	kind    int
	name    string
	order   uint64 // breaks ties of arrival
	arrival time.Duration
	turns   int // left, this one included
	prompt  []uint64
	answer  int // ids
}

// New makes a Generator, or says which setting is out of range.
func New(cfg Config) (*Generator, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	g := &Generator{
		cfg:   cfg,
		rng:   rand.New(rand.NewPCG(cfg.Seed, 0x6b766174)),
		kinds: [3]Session{cfg.Conversation, cfg.Agent, cfg.OneOff},
	}
	sum := 0.0
	for k := range cfg.SystemPrompts {
		sum += math.Pow(float64(k+1), -cfg.Zipf)
		g.zipf = append(g.zipf, sum)
	}
	turns := 0.0
	for _, k := range g.kinds {
		g.weight += k.Weight
		turns += k.Weight * k.Turns
	}
	g.starts = cfg.Rate * g.weight / turns
	g.nextID = uint64(cfg.SystemPrompts * g.idsOf(cfg.SystemTokens))
	return g, nil
}

// IDTokens implements trace.Source.
func (g *Generator) IDTokens() int { return g.cfg.IDTokens }

// Next implements trace.Source; the error is nil or io.EOF.
func (g *Generator) Next(r *trace.Request) error {
	if g.cfg.Requests > 0 && g.serial >= uint64(g.cfg.Requests) {
		return io.EOF
	}
	for len(g.live) == 0 || g.next <= g.live[0].arrival {
		g.start()
	}
	s := g.live[0]
	kind := &g.kinds[s.kind]
	*r = trace.Request{
		Arrival: s.arrival,
		Input:   len(s.prompt) * g.cfg.IDTokens,
		Output:  s.answer * g.cfg.IDTokens,
		IDs:     append(r.IDs[:0], s.prompt...), OutputIDs: r.OutputIDs[:0],
		Session: s.name,
		Serial:  g.serial,
	}
	g.serial++
	if kind.Tail < 0 {
		r.OutputIDs = g.fresh(r.OutputIDs, s.answer)
		s.prompt = append(s.prompt, r.OutputIDs...)
	} else {
		s.prompt = s.prompt[:max(0, len(s.prompt)-g.idsOf(kind.Tail))]
		s.prompt = g.fresh(s.prompt, s.answer+g.idsOf(kind.Tail))
	}
	s.prompt = g.fresh(s.prompt, g.idsFor(kind.Turn))
	s.arrival += time.Duration(r.Output)*g.cfg.AnswerTime + g.exp(kind.Think)
	s.answer = g.drawAnswer(kind)
	if s.turns--; s.turns == 0 || len(s.prompt)+s.answer > g.limit() {
		heap.Pop(&g.live)
	} else {
		heap.Fix(&g.live, 0)
	}
	return nil
}

// start adds the session that starts at g.next and draws when the next does.
func (g *Generator) start() {
	s := &session{arrival: g.next, order: g.started, turns: 1}
	g.started++
	pick := g.rng.Float64() * g.weight
	for s.kind = 0; s.kind < len(g.kinds)-1 && pick >= g.kinds[s.kind].Weight; s.kind++ {
		pick -= g.kinds[s.kind].Weight
	}
	kind := &g.kinds[s.kind]
	s.name = fmt.Sprintf("%s-%d", kindNames[s.kind], s.order)
	for g.rng.Float64()*kind.Turns >= 1 {
		s.turns++
	}
	if n := len(g.zipf); n > 0 {
		k := min(n-1, sort.SearchFloat64s(g.zipf, g.rng.Float64()*g.zipf[n-1]))
		ids := g.idsOf(g.cfg.SystemTokens)
		for i := range ids {
			s.prompt = append(s.prompt, uint64(k*ids+i))
		}
	}
	if kind.Context > 0 {
		s.prompt = g.fresh(s.prompt, g.idsFor(kind.Context))
	}
	s.prompt = g.fresh(s.prompt, g.idsFor(kind.Turn))
	s.answer = g.drawAnswer(kind)
	s.prompt = s.prompt[:min(len(s.prompt), g.limit()-s.answer)]
	heap.Push(&g.live, s)
	g.next += g.gap()
}

// limit is the most ids that a prompt and its answer have together.
func (g *Generator) limit() int { return g.cfg.MaxTokens / g.cfg.IDTokens }

// drawAnswer draws the length of an answer in ids and leaves room for a prompt.
func (g *Generator) drawAnswer(kind *Session) int {
	return max(1, min(g.idsFor(kind.Answer), g.limit()/2))
}

// gap draws the time to the next start at the rate that holds at g.next.
func (g *Generator) gap() time.Duration {
	rate := g.starts
	if every := g.cfg.BurstEvery; every > 0 {
		in := float64(g.cfg.BurstLength) / float64(every)
		rate /= in*g.cfg.BurstFactor + 1 - in
		if g.next%every < g.cfg.BurstLength {
			rate *= g.cfg.BurstFactor
		}
	}
	return time.Duration(g.rng.ExpFloat64() / rate * float64(time.Second))
}

func (g *Generator) exp(mean time.Duration) time.Duration {
	return time.Duration(g.rng.ExpFloat64() * float64(mean))
}

func (g *Generator) idsOf(tokens int) int { return (tokens + g.cfg.IDTokens - 1) / g.cfg.IDTokens }

// idsFor draws a length of this mean in tokens, in ids.
func (g *Generator) idsFor(mean float64) int {
	const sigma = 0.8
	x := min(8, math.Exp(sigma*g.rng.NormFloat64()-sigma*sigma/2))
	return max(1, int(math.Round(min(mean*x, float64(g.cfg.MaxTokens))/float64(g.cfg.IDTokens))))
}

// fresh appends n ids that name new content.
func (g *Generator) fresh(ids []uint64, n int) []uint64 {
	ids = slices.Grow(ids, n)
	for range n {
		ids = append(ids, g.nextID)
		g.nextID++
	}
	return ids
}

// queue is a heap of sessions by arrival.
type queue []*session

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	a, b := q[i], q[j]
	return a.arrival < b.arrival || a.arrival == b.arrival && a.order < b.order
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(*session)) }
func (q *queue) Pop() any {
	old := *q
	s := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return s
}
