package follow

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// rig is one engine with its wire and its replay, and one replica: a Rank with the
// index that its effects make. Like world it is a function of its moves.
type rig struct {
	engines []*engineRun // its processes: batch n is the event n+1
	queue   []wired      // on the wire
	up      bool         // the wire
	buffer  int          // batches that the replay has
	names   uint64
	held    []uint64
	lost    map[string]bool // batches that cannot be read, by process and number

	step  Step
	rank  Rank
	index *core.Oracle
	asked *Question
	of    int // the process of the last batch taken; of what the index has

	twin bool // a process's first message continued another's numbers, and nobody told
	did  map[string]int
	fail error
}

// wired is a batch on its way.
type wired struct {
	run    int
	number uint64
}

func (w wired) String() string { return fmt.Sprintf("%d of %d", w.number, w.run) }

func newRig(a, b uint8) *rig {
	g := &rig{buffer: int(b) % 12, did: map[string]int{}, lost: map[string]bool{}, index: core.NewOracle(), rank: New(uint64(b))}
	g.step = Step{Now: world0, Limits: &Limits{Source: Replay, HoldMessages: 1, HoldBytes: 1 << 20, RecoverMessages: 1,
		GapWait: 5e9, RecoverMin: 1e8, RecoverMax: 1e10}}
	if a%4 == 0 {
		g.step.Source = Engine
	}
	g.step.Snapshots = a%8 >= 4 // and the engine's processes name themselves
	g.start()
	g.do((*Rank).Broken)
	return g
}

var world0 = storyBegan

func (g *rig) start() {
	g.engines, g.held = append(g.engines, &engineRun{oracle: core.NewOracle()}), nil
}

func (g *rig) engine() *engineRun { return g.engines[len(g.engines)-1] }

// publish has the engine do something. Of what is lost on the wire nothing comes.
func (g *rig) publish(a uint8, lost bool) {
	e := g.engine()
	ev := event.Event{Kind: event.Stored, ID: e.last() + 1}
	switch {
	case a%16 == 0:
		ev.Kind, ev.AllTiers, g.held = event.Cleared, true, nil
	case a%3 == 0 && len(g.held) > 0:
		i := int(a>>3) % len(g.held)
		ev.Kind, ev.Engine = event.Removed, []uint64{g.held[i]}
		g.held = slices.Delete(g.held, i, i+1)
	default:
		if len(g.held) > 0 && a%4 > 0 {
			ev.HasParent, ev.Parent = true, g.held[int(a>>4)%len(g.held)]
		}
		g.names++
		ev.Engine, ev.Local = []uint64{g.names}, []uint64{g.names % 5}
		g.held = append(g.held, g.names)
	}
	perform(e.oracle, &ev)
	e.events, e.after = append(e.events, ev), append(e.after, oracleDigest(e.oracle))
	w := wired{len(g.engines) - 1, e.last() - 1}
	if a%29 == 1 {
		g.did["unreadable"]++
		g.lost[w.String()] = true
	}
	if lost {
		g.did["lost"]++
	} else if g.up {
		g.queue = append(g.queue, w)
	}
}

func (g *rig) batch(w wired) *Batch {
	b := &Batch{Number: w.number, Print: 1 + uint64(w.run)<<32 + w.number, Ref: w}
	if g.step.Snapshots {
		b.Process = 1 + uint64(w.run)
	}
	return b
}

// snapshot has the engine give one: how says what is wrong with it. It reports whether the
// rank took it.
func (g *rig) snapshot(how uint8) (taken bool) {
	run := len(g.engines) - 1
	last := g.engine().last()
	switch how % 8 {
	case 3, 5:
		g.did["no snapshot"]++
		return false
	case 6:
		last -= min(last, uint64(how>>3))
	case 7:
		if run > 0 {
			run--
			last = g.engines[run].last()
		}
	}
	w := wired{run, last - 1}
	g.do(func(r *Rank, s *Step) {
		taken = r.Snapshot(s, &Batch{Number: w.number, Process: 1 + uint64(run), Ref: w})
	})
	g.did[fmt.Sprintf("snapshot taken: %v", taken)]++
	return taken
}

// do gives the rank an input and carries the effects out.
func (g *rig) do(f func(r *Rank, s *Step)) {
	s := &g.step
	s.Effects = s.Effects[:0]
	f(&g.rank, s)
	var opened *Contents
	parent := false
	for i := range s.Effects {
		e := &s.Effects[i]
		switch g.did[e.Kind.String()]++; e.Kind {
		case Apply:
			w := e.Ref.(wired)
			opened = new(Contents)
			g.of = w.run
			if g.lost[w.String()] {
				opened.Lost = errNoAnswer
				continue
			}
			ev := g.engines[w.run].events[w.number]
			opened.Cleared = ev.Kind == event.Cleared
			out := perform(g.index, &ev)
			parent = out.UnknownParent > 0
		case Clear:
			g.index.Clear(0, 0, true)
			g.twin = false
		case Commit:
			w := e.Ref.(wired)
			g.index.Clear(0, 0, true)
			for _, ev := range g.engines[w.run].events[:w.number+1] {
				perform(g.index, &ev)
			}
			g.of, g.twin = w.run, false
		case Restart:
			g.did[e.Sign.String()]++
		case Ask:
			g.did["ask "+e.Cause.String()]++
			q := e.Ask
			g.asked = &q
		case Cancel:
			g.asked = nil
		}
	}
	if opened != nil {
		g.do(func(r *Rank, s *Step) { r.Opened(s, *opened) })
		if parent {
			g.do(func(r *Rank, s *Step) { r.Noted(s, true, false) })
		}
		return
	}
	if err := g.rank.check(); err != nil && g.fail == nil {
		g.fail = err
	}
}

// answer has the engine answer: how says what goes wrong.
func (g *rig) answer(how uint8) {
	for tries := 0; g.asked != nil; tries++ {
		e, run := g.engine(), len(g.engines)-1
		q := *g.asked
		oldest := max(0, int(e.last())-g.buffer)
		broken, first := false, max(oldest, int(q.From)-1)
		if g.step.Snapshots && (g.rank.Wanting(g.step.Source == Engine) || uint64(first) > g.rank.Next()) && g.snapshot(how) {
			g.asked = nil
			g.do(func(r *Rank, s *Step) { r.Ended(s, Result{}) })
			continue
		}
		if g.step.Source == Engine {
			g.asked = nil
			g.do(func(r *Rank, s *Step) { r.Ended(s, Result{Err: errNoAnswer}) })
			continue
		}
		for n := first; n < int(e.last()) && g.asked != nil; n++ {
			if how%8 == 1 && n%3 == 1 || how%8 == 2 { // a hole, or it breaks
				how, broken = 0, how%8 == 2
				if broken {
					break
				}
				continue
			}
			whole := true
			g.do(func(r *Rank, s *Step) { whole = r.Replayed(s, g.batch(wired{run, uint64(n)})) })
			if !whole {
				g.did["holes"]++
				broken = true
				break
			}
		}
		switch {
		case g.asked == nil: // it is another process
			g.connect()
			return
		case how%8 == 3, tries > 3: // nobody answers any more
			g.asked = nil
			g.did["unanswered"]++
			g.do(func(r *Rank, s *Step) { r.Ended(s, Result{Err: errNoAnswer}) })
		case how%8 == 4:
			g.disconnect()
			return
		case broken:
			g.do(func(r *Rank, s *Step) { q = r.Again(s) })
			g.asked = &q
		case g.step.Snapshots && g.rank.Wanting(true) && g.snapshot(how):
			g.asked = nil
			g.do(func(r *Rank, s *Step) { r.Ended(s, Result{}) })
		default:
			g.asked = nil
			g.do((*Rank).ReplayEnd)
		}
	}
}

func (g *rig) disconnect() {
	g.up, g.queue, g.asked = false, nil, nil
	g.do((*Rank).Broken)
}

func (g *rig) connect() {
	g.up, g.queue = true, nil
	g.do((*Rank).Connected)
	g.answer(0)
}

func (g *rig) receive(n int, how uint8) {
	for ; n > 0 && len(g.queue) > 0 && g.up; n-- {
		w := g.queue[0]
		g.queue = g.queue[1:]
		// Of a process that nobody told of, and whose numbers go on where the one before
		// ended, nothing shows that it is another one.
		if w.run != g.of && w.number == g.rank.Next() && g.rank.wire.process == 0 {
			g.twin = true
		}
		named := g.rank.wire.process != 0
		g.do(func(r *Rank, s *Step) { r.Live(s, g.batch(w)) })
		if g.answer(how); w.run != g.of && g.up && w.number < g.rank.Next() && !named {
			g.twin = true // a replay brought that number already, of another process
		}
	}
}

func (g *rig) play(m move) {
	switch k := m.kind % 32; k {
	case 0: // the engine restarts, and the wire breaks
		g.did["restarts"]++
		g.start()
		for range m.a % 8 {
			g.publish(m.b, true)
		}
		g.disconnect()
	case 1: // it restarts behind a proxy, which keeps the wire
		if g.step.Source == Replay {
			g.did["proxied"]++
			g.start()
			g.queue = nil
			g.publish(m.b, false)
		}
	case 2, 3:
		g.did["disconnects"]++
		g.disconnect()
	case 4, 5, 6:
		if !g.up {
			g.connect()
		}
	case 7:
		if g.up {
			g.do((*Rank).Silent)
			g.answer(m.a)
		}
	case 8: // copies, and what comes late
		if n := len(g.queue); n > 0 && g.step.Source == Replay {
			g.did["copies"]++
			g.queue = slices.Insert(g.queue, n, g.queue[int(m.a)%n])
		}
	case 9:
		if n := len(g.queue); n > 1 && g.step.Source == Replay {
			g.did["reordered"]++
			g.queue[n-1], g.queue[n-2] = g.queue[n-2], g.queue[n-1]
		}
	case 10: // the replica ends and goes on
		g.did["replicas"]++
		g.up, g.queue, g.asked = false, nil, nil
		pos, known := g.rank.Position()
		g.rank = New(7)
		g.do((*Rank).Broken)
		if known {
			g.do(func(r *Rank, s *Step) { r.Resume(s, &pos) })
		} else {
			g.index.Clear(0, 0, true)
		}
	case 11, 12:
		g.step.Now = g.step.Now.Add(1 << (20 + m.a%16))
	case 13, 14, 15:
		g.publish(m.a, true)
	case 16, 17, 18, 19, 20, 21, 22:
		g.receive(1+int(m.a%4), m.b)
	default:
		g.publish(m.a, false)
	}
	g.step.Now = g.step.Now.Add(5e7)
}

// fresh verifies that what is not shown as incomplete is what a process held after the
// batch that the status names.
func (g *rig) fresh() error {
	st := g.rank.Status()
	switch {
	case g.fail != nil:
		return g.fail
	case g.asked != nil || g.rank.Recovery() != 0:
		return fmt.Errorf("nobody answers %+v", st)
	case st.Incomplete || g.twin:
		return nil
	}
	g.did["checked"]++
	if have := oracleDigest(g.index); have != g.engines[g.of].at(st.LastID) {
		return fmt.Errorf("%+v of process %d is shown as fresh, and is not", st, g.of)
	}
	return nil
}

func (g *rig) converge() error {
	g.twin = false
	g.buffer = 1 << 20
	g.step.Source = Replay
	g.publish(0, true)
	g.step.Now = g.step.Now.Add(3.6e12)
	for range 3 { // the first may show another process
		g.disconnect()
		g.connect()
	}
	for i := range 20 {
		g.publish(uint8(16*i), false)
		g.receive(1, 0)
		if err := g.fresh(); err != nil {
			return err
		}
	}
	e, st := g.engine(), g.rank.Status()
	if st.LastID != e.last() || st.State != Following || oracleDigest(g.index) != oracleDigest(e.oracle) {
		return fmt.Errorf("not converged: %+v, want %d of process %d", st, e.last(), len(g.engines)-1)
	}
	return nil
}

func simulateEngine(moves []move) (g *rig, err error) {
	g = newRig(moves[0].a, moves[0].b)
	for _, m := range moves[1:] {
		g.play(m)
		if err := g.fresh(); err != nil {
			return g, err
		}
	}
	return g, g.converge()
}

// engineFaults are what may go wrong with an engine. A history has at least one.
var engineFaults = []string{"restarts", "proxied", "disconnects", "copies", "reordered", "replicas", "lost", "unreadable", "holes", "unanswered"}

// As for publishers: whatever an engine, its wire and its replay do.
func TestEveryEngineIsFollowed(t *testing.T) {
	all := map[string]int{}
	n := histories(t) / 2
	for seed := range n {
		moves := randomMoves(seed)
		g, err := simulateEngine(moves)
		if err != nil {
			t.Fatal(whatFails(seed, moves))
		}
		if !slices.ContainsFunc(engineFaults, func(k string) bool { return g.did[k] > 0 }) {
			t.Errorf("seed %d has no fault", seed)
		}
		for k, n := range g.did {
			all[k] += n
		}
	}
	t.Logf("%d histories: %v", n, all)
	for _, k := range append([]string{"gap", "skip", "fell_back", "shorter", "differs", "unproven",
		"ask gap", "ask connected", "ask silence", "ask fell", "checked", "named", "commit", "snapshot taken: true", "snapshot taken: false", "no snapshot"}, engineFaults...) {
		if all[k] == 0 {
			t.Errorf("no history has %q", k)
		}
	}
}

// whatFails tells a history that fails, in short.
func whatFails(seed uint64, moves []move) error {
	short := shrink(moves, func(m []move) error { _, err := simulateEngine(m); return err })
	g := newRig(short[0].a, short[0].b)
	text := fmt.Sprintf("seed %d, source %d, buffer %d\n", seed, g.step.Source, g.buffer)
	for _, m := range short[1:] {
		g.play(m)
		text += fmt.Sprintf("{%d, %d, %d}: process %d at %d, queue %v: %+v\n", m.kind%32, m.a, m.b, len(g.engines)-1, g.engine().last(), g.queue, g.rank.Status())
	}
	_, err := simulateEngine(short)
	return errors.Join(err, errors.New(text))
}

// FuzzFollowEngine has the fuzzer choose the moves.
func FuzzFollowEngine(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(bytesOf(randomMoves(seed)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if moves := movesOf(b); len(moves) > 0 {
			if _, err := simulateEngine(moves); err != nil {
				t.Fatal(whatFails(rand.Uint64(), moves))
			}
		}
	})
}
