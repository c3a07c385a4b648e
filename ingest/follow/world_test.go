package follow

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// world is one publisher with its engine, the stream or wire that it sends to, and
// one replica: a Rank with the index that its effects make. It is a function of its
// moves, so that a run that fails is made shorter and told again.
type world struct {
	live bool // no stream: messages come at once, or never
	bare bool // a wire without incarnations
	now  time.Time

	// The publisher.
	runs   []*engineRun // the last one is the present one
	ring   int
	silent bool
	held   []uint64 // blocks of the present run
	names  uint64

	// The stream.
	stream  []sent // [i] has the sequence first+i
	first   uint64 // sequence of stream[0]
	created time.Time
	next    uint64 // first sequence that the replica has not read

	// The registry.
	left    Departure
	gone    bool
	unheard []func() // changes that the replica has not heard of
	spoke   bool     // something was sent since it left
	needs   uint64   // looks at the stream, of which one is sure to have begun since it left
	back    bool     // the replica was given an event from after it left
	crossed bool     // a message came after one of the next run
	newest  int      // run that the replica was seen at since it last began to read

	// The replica.
	step   Step
	rank   Rank
	index  *core.Oracle
	budget int // stores that the index still takes; < 0: all
	notes  [2]bool
	asking *asking
	kept   *keptSnapshot

	lossyNow bool
	partial  uint64 // the publisher knows nothing of what was held after this event; 0: it knows all
	did      map[string]int
	asked    int
	fail     error
}

// engineRun is one process of the engine: what it did, and what it held after each
// event.
type engineRun struct {
	incarnation uint64
	events      []event.Event // [i] has the id i+1
	after       []uint64      // digest after each
	oracle      *core.Oracle
}

func (e *engineRun) last() uint64 { return uint64(len(e.events)) }

func (e *engineRun) at(id uint64) uint64 {
	if id == 0 || id > e.last() {
		return 0
	}
	return e.after[id-1]
}

// sent is a message: events, or a heartbeat.
type sent struct {
	run     int
	from    uint64
	to      uint64
	beat    bool
	spoilt  bool
	missing map[uint64]bool // ids that the publisher dropped
	lossy   bool
	stored  time.Time // by the stream
}

// asking is a recovery under way.
type asking struct {
	number   uint64
	q        Question
	dump     *core.Oracle // being loaded
	run      int
	last     uint64
	dumped   bool
	answered bool
	lossy    bool
	part     bool
}

type keptSnapshot struct {
	pos   Position
	known bool
	index *core.Oracle
	next  uint64
	of    time.Time
}

// move is one thing that happens.
type move struct{ kind, a, b uint8 }

func oracleDigest(o *core.Oracle) uint64 {
	return o.Digest(1, func(core.Holder) (uint64, uint32) { return 1, 0 })
}

func copyOf(o *core.Oracle) *core.Oracle {
	c := core.NewOracle()
	restore := core.Restorer{Index: c}
	o.Dump(0, func(ev *event.Event, copies []uint32) bool {
		e := *ev
		e.Engine, e.Local = slices.Clone(ev.Engine), slices.Clone(ev.Local)
		restore.Add(&e, slices.Clone(copies))
		return true
	})
	restore.Finish()
	return c
}

func perform(o *core.Oracle, ev *event.Event) core.Outcome {
	switch ev.Kind {
	case event.Stored:
		return o.Store(0, ev, false)
	case event.Removed:
		return o.Remove(0, ev, false)
	}
	return o.Clear(0, ev.Tier, ev.AllTiers)
}

func newWorld(a, b uint8) *world {
	w := &world{live: a&1 == 1, bare: a&6 == 6, ring: 1 + int(b)%40, now: time.Unix(1_000_000, 0), first: 1, next: 1, budget: -1,
		created: time.Unix(5000, 0), did: map[string]int{}}
	if w.live {
		w.created = time.Time{}
	}
	w.step = Step{Limits: &Limits{
		HoldMessages: 3 + int(a>>3)%8, HoldBytes: 1 << 20, RecoverMessages: 1 + int(b>>3)%12, GapAsk: 250 * time.Millisecond, GapWait: 10 * time.Second,
		RecoverMin: 50 * time.Millisecond, RecoverMax: 10 * time.Second, DumpMin: time.Second, DumpMax: 5 * time.Minute, Lease: 15 * time.Second,
	}}
	if w.bare {
		w.step.Source = Mute
	}
	w.restartEngine()
	w.openReplica()
	return w
}

func (w *world) run() *engineRun { return w.runs[len(w.runs)-1] }

func (w *world) restartEngine() {
	e := &engineRun{oracle: core.NewOracle()}
	if !w.bare {
		e.incarnation = 100 + uint64(len(w.runs))*7919%13*1000 + uint64(len(w.runs)) // in no order
	}
	w.runs, w.held, w.lossyNow, w.partial = append(w.runs, e), nil, false, 0
}

func (w *world) openReplica() {
	w.begun()
	w.back = false
	w.rank, w.index, w.notes, w.asking, w.unheard = New(7), core.NewOracle(), [2]bool{}, nil, nil
	w.step.Looks, w.step.LookEnd = 1, w.end()
	if w.gone {
		w.do(func(s *Step) { w.rank.Leave(s, w.left) })
		if w.needs = 1; w.left.unnoted() {
			w.needs = 3
		}
	}
}

// engineStep has the engine do something.
func (w *world) engineStep(a uint8) {
	e := w.run()
	ev := event.Event{Kind: event.Stored, ID: e.last() + 1}
	switch {
	case a%32 == 0:
		ev.Kind, ev.AllTiers = event.Cleared, true
		w.held, w.lossyNow, w.partial = nil, false, 0
	case a%3 == 0 && len(w.held) > 0:
		ev.Kind = event.Removed
		i := int(a>>3) % len(w.held)
		ev.Engine = []uint64{w.held[i]}
		w.held = slices.Delete(w.held, i, i+1)
	default:
		if len(w.held) > 0 && a%4 > 0 {
			ev.HasParent, ev.Parent = true, w.held[int(a>>4)%len(w.held)]
		}
		for range 1 + a%2 {
			w.names++
			ev.Engine, ev.Local = append(ev.Engine, w.names), append(ev.Local, w.names%5)
			w.held = append(w.held, w.names)
		}
	}
	ev.Incomplete = w.lossyNow
	perform(e.oracle, &ev)
	e.events = append(e.events, ev)
	e.after = append(e.after, oracleDigest(e.oracle))
}

// publish has the engine do a few things, which are sent in one message.
func (w *world) publish(m move) {
	e := w.run()
	msg := sent{run: len(w.runs) - 1, from: e.last() + 1}
	for i := range 1 + m.a%3 {
		w.engineStep(m.b + 37*i)
		if m.a == 77 {
			msg.missing = map[uint64]bool{e.last(): true}
		}
	}
	msg.to = e.last()
	if w.bare && msg.from == 1 { // how else would a restart show?
		w.send(msg)
		return
	}
	switch m.a / 8 {
	case 1: // lost on its way
		w.did["lost"]++
		return
	case 2:
		w.did["spoilt"]++
		msg.spoilt = true
	case 3:
		if !w.live {
			w.did["late"]++
			w.send(msg)
			w.lateness()
			return
		}
	}
	w.send(msg)
	if m.a/8 == 4 {
		w.did["copies"]++
		w.send(msg)
	}
}

// lateness has the last two messages change places, unless they are read: one of a
// run that the replica knows may even come after the next run's.
func (w *world) lateness() {
	n := len(w.stream)
	if n < 2 || w.next >= w.first+uint64(n-1) || w.stream[n-2].beat || w.bare && w.stream[n-2].from == 1 {
		return
	}
	if w.stream[n-1].run != w.stream[n-2].run {
		if w.rank.Status().Incarnation != w.runs[w.stream[n-2].run].incarnation {
			return
		}
		w.crossed = true
	}
	w.stream[n-1], w.stream[n-2] = w.stream[n-2], w.stream[n-1]
}

// begun notes that the replica begins to read anew: of two runs that are in no
// order, the one that comes first is the first.
func (w *world) begun() {
	if w.newest = 0; w.crossed {
		w.newest = -1
	}
}

func (w *world) send(msg sent) {
	w.spoke = true
	if w.live {
		w.receive(msg, 0)
		return
	}
	msg.stored = w.now
	w.stream = append(w.stream, msg)
}

func (w *world) end() uint64 { return w.first + uint64(len(w.stream)) - 1 }

// read has the replica read some of the stream.
func (w *world) read(n int) {
	if w.next < w.first {
		w.next = w.first // trimmed: ids show it
	}
	for ; n > 0 && w.next <= w.end(); n-- {
		seq := w.next
		w.next++
		w.receive(w.stream[seq-w.first], seq)
	}
}

func (w *world) receive(msg sent, seq uint64) {
	e := w.runs[msg.run]
	after := w.left.Created.Equal(w.created) && seq > w.left.Seq || !w.left.Created.Equal(w.created) && w.step.Looks >= w.needs
	if w.gone && !msg.spoilt && !msg.beat && len(msg.missing) == 0 && len(w.unheard) == 0 && after && !w.left.unnoted() && msg.run == len(w.runs)-1 {
		w.back = true
	}
	w.do(func(s *Step) {
		switch {
		case msg.spoilt:
			w.rank.Unusable(s, 0, true, errors.New("spoilt"))
		case msg.beat:
			w.rank.Heartbeat(s, Heartbeat{Incarnation: e.incarnation, Last: msg.to, Incomplete: msg.lossy, Live: w.live, Seq: seq, Stored: msg.stored})
		default:
			var evs []event.Event
			for id := msg.from; id <= msg.to; id++ {
				if !msg.missing[id] {
					evs = append(evs, e.events[id-1])
				}
			}
			if len(evs) > 0 {
				w.rank.Message(s, Message{Incarnation: e.incarnation, Events: evs, Live: w.live, Seq: seq, Stored: msg.stored})
			}
		}
	})
}

// do gives the rank an input and carries the effects out.
func (w *world) do(f func(s *Step)) {
	s := &w.step
	s.Now, s.Created, s.Effects = w.now, w.created, s.Effects[:0]
	s.Read, s.End, s.Answered = w.next-1, w.end(), w.asking != nil && w.asking.answered
	f(s)
	for i := range s.Effects {
		w.effect(&s.Effects[i])
	}
	if err := w.rank.check(); err != nil && w.fail == nil {
		w.fail = err
	}
}

func (w *world) effect(e *Effect) {
	switch w.did[e.Kind.String()]++; e.Kind {
	case Apply:
		for i := range e.Events {
			ev := e.Events[i]
			if ev.Kind == event.Stored && w.budget == 0 {
				w.notes[1] = true
				continue
			} else if ev.Kind == event.Stored && w.budget > 0 {
				w.budget--
			}
			if out := perform(w.index, &ev); out.UnknownParent > 0 {
				w.notes[0] = true
			}
		}
	case Clear:
		w.index.Clear(0, 0, true)
	case Drop:
		w.did[e.Reason.String()]++
	case Ask:
		w.asked++
		w.did["ask "+e.Cause.String()]++
		w.asking = &asking{number: e.Number, q: e.Ask}
	case Cancel:
		w.asking = nil
	case Commit: // only once a dump is offered
		if w.asking != nil && w.asking.dump != nil {
			w.index, w.asking.dump = w.asking.dump, nil
		}
	}
}

var errNoAnswer = errors.New("no answer")

// answer goes on with the recovery that is under way.
func (w *world) answer(a uint8) {
	v := w.asking
	if v == nil {
		return
	}
	if v.number != w.rank.Recovery() {
		w.fail = fmt.Errorf("recovery %d is asked for, %d is under way", v.number, w.rank.Recovery())
		return
	}
	finish := func(r Result) {
		w.asking = nil
		w.do(func(s *Step) { w.rank.Ended(s, r) })
	}
	if v.dump != nil { // it is loaded
		refused := w.budget == 0 && w.index != nil
		run := w.runs[v.run]
		w.do(func(s *Step) {
			w.rank.Dump(s, Dump{Incarnation: run.incarnation, Last: v.last, Lossy: v.lossy, Partial: v.part})
		})
		if refused && w.asking == v {
			w.index = core.NewOracle() // nothing of it
			finish(Result{Refused: true})
			return
		}
		v.q.From, v.q.Incarnation, v.dumped = v.last+1, run.incarnation, true
		return
	}
	e := w.run()
	v.answered = v.answered || !w.silent && a != 200
	switch {
	case w.silent || e.last() == 0 || a == 200:
		finish(Result{Err: errNoAnswer})
	case v.q.From > 0 && e.incarnation == v.q.Incarnation && v.q.From <= e.last()+1 && v.q.From+uint64(w.ring) > e.last():
		to := min(e.last(), v.q.From+2)
		if to >= v.q.From {
			evs := slices.Clone(e.events[v.q.From-1 : to])
			v.q.From = to + 1
			w.do(func(s *Step) { w.rank.Recovered(s, evs, nil) })
			if to < e.last() || w.asking != v {
				return
			}
		}
		finish(Result{})
	case v.dumped:
		finish(Result{Err: errNoAnswer})
	case w.now.Before(w.rank.NoDump()):
		finish(Result{Err: errNoAnswer})
	case w.partial > 0 && v.q.Known && v.q.Incarnation == e.incarnation: // the replica knows more
		finish(Result{Err: errNoAnswer})
	default:
		v.dump, v.run, v.last, v.lossy, v.part = core.NewOracle(), len(w.runs)-1, e.last(), w.lossyNow, w.partial > 0
		if w.partial == 0 {
			v.dump = copyOf(e.oracle)
		}
		for i := w.partial; i > 0 && i < e.last(); i++ {
			perform(v.dump, &e.events[i])
		}
	}
}

// note has the rank hear what the index noted.
func (w *world) note() {
	if n := w.notes; n[0] || n[1] {
		w.notes = [2]bool{}
		w.do(func(s *Step) { w.rank.Noted(s, n[0], n[1]) })
	}
}

func (w *world) hear() {
	all := w.unheard
	w.unheard = nil
	for _, f := range all {
		f()
	}
}

func (w *world) pass(d time.Duration) {
	w.now = w.now.Add(d)
	w.step.Looks, w.step.LookEnd = w.step.Looks+uint64(d/(2*time.Second)), w.end()
	if w.rank.Ticks() {
		w.do(func(s *Step) { w.rank.Tick(s) })
	}
}

// leave has the rank leave, by the word of a machine whose clock is as far off as it
// likes. Nobody notes where the stream was if unnoted.
func (w *world) leave(off time.Duration, unnoted bool) {
	w.did["left"]++
	w.now = w.now.Add(time.Second)
	d := Departure{At: w.now.Add(off), Seq: w.end(), Created: w.created}
	if unnoted {
		w.did["left unnoted"]++
		d.Seq, d.Created, d.Silent = 0, time.Time{}, true
	}
	w.left, w.gone, w.spoke, w.back = d, true, false, false
	w.unheard = append(w.unheard, func() {
		if w.rank.Departure().At.Equal(d.At) {
			return
		}
		w.index.Clear(0, 0, true)
		if w.asking != nil {
			w.asking.dump = nil
		}
		w.do(func(s *Step) { w.rank.Leave(s, d) })
		w.needs = w.step.Looks + 2
	})
}

func (w *world) register() {
	if w.gone {
		w.gone = false
		w.unheard = append(w.unheard, func() { w.do(func(s *Step) { w.rank.Return(s) }) })
	}
}

func (w *world) void(end uint64) {
	w.begun()
	w.next, w.spoke = w.first, true
	w.do(func(s *Step) { w.rank.Voided(s, end) })
}
