package follow

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
)

// TestScripts runs the stories of testdata: each is a list of inputs to one rank, which
// print the effects and the rank's status.
//
//	new [deaf | engine | replay] [hold=8] [spill=20]   another rank
//	message run=5 ids=1..3,5 [live] [seq=7] [stored=10] [clear] [lossy]   the last event clears, all say that the stream is incomplete
//	heartbeat run=5 last=3 [live] [seq=7] [stored=10] [lossy]
//	spoilt [id=4] [other]                     a message that cannot be used; one that names another worker
//	tick 250ms [full] [read=7] [end=9]        so much later
//	page 4..6 | dump run=5 last=9 [lossy] [partial] | end [error] [refused] [unplaced]   of the recovery
//	note [parent] [refused] | room | void last=3 | expect | contradict
//	leave at=10 [seq=7] [created=1] [silent] | return | told [run=5] [last=9]
//	look end=9                                the stream is looked at: it is the one that is read, and ends there
//	resume run=5 last=9 [incomplete] [left=10] [departed] [ended=3,4] | takeup the same, and seq=8 [present]
//	stream created=2                          the stream that is read
//	connected | broken | silent | anew        of an engine's wire
//	live n=3 [print=9] | sent n=3 | replayed n=3 [print=9]   its batches; [clear] [lost] is what they turn out to have
//	again | whole                             the answer broke, or came to its end
func TestScripts(t *testing.T) {
	coretest.Scripts(t, "testdata/*.txt", func() (func(string) ([]string, error), func() error) {
		return newStory().run, func() error { return nil }
	})
}

// story is one rank, told.
type story struct {
	step Step
	rank Rank
	now  time.Duration
	n    int // messages so far: a message's name is its number
}

var storyBegan = time.Unix(1_000_000, 0)

func newStory() *story {
	return &story{rank: New(7), step: Step{Created: storyStream(1), Limits: &Limits{
		HoldMessages: 8, HoldBytes: 1 << 20, RecoverMessages: 20, GapAsk: 250 * time.Millisecond, GapWait: 10 * time.Second,
		RecoverMin: 50 * time.Millisecond, RecoverMax: 10 * time.Second, DumpMin: time.Second, DumpMax: 5 * time.Minute, Lease: 15 * time.Second,
	}}}
}

// storyStream returns when the stream of that number was made; 0: there is none.
func storyStream(n uint64) (at time.Time) {
	if n > 0 {
		at = time.Unix(int64(n), 0)
	}
	return at
}

// words are a command's arguments.
type words map[string]string

func (w words) is(k string) bool { _, ok := w[k]; return ok }

func (w words) n(k string) uint64 {
	if w[k] == "max" {
		return math.MaxUint64
	}
	n, err := strconv.ParseUint(w[k], 10, 64)
	if err != nil && w.is(k) {
		panic(fmt.Sprintf("%s=%s is no number", k, w[k]))
	}
	return n
}

func (w words) list(k string) (ids []uint64) {
	if w[k] == "" {
		return nil
	}
	for _, part := range strings.Split(w[k], ",") {
		from, to, isRange := strings.Cut(part, "..")
		a := words{"": from}.n("")
		b := a
		if isRange {
			b = words{"": to}.n("")
		}
		for id := a; id <= b; id++ {
			ids = append(ids, id)
		}
	}
	return ids
}

func (st *story) events(ids []uint64, w words) []event.Event {
	evs := make([]event.Event, len(ids))
	for i, id := range ids {
		evs[i] = event.Event{Kind: event.Stored, ID: id, Incomplete: w.is("lossy")}
	}
	if w.is("clear") {
		evs[len(evs)-1].Kind, evs[len(evs)-1].AllTiers = event.Cleared, true
	}
	return evs
}

// run carries out a command and returns its effects and the rank's status.
func (st *story) run(line string) (out []string, err error) {
	command, rest, _ := strings.Cut(line, " ")
	w := words{}
	for _, arg := range strings.Fields(rest) {
		k, v, _ := strings.Cut(arg, "=")
		w[k] = v
	}
	s, r := &st.step, &st.rank
	s.Now, s.Effects, s.Full, s.Answered = storyBegan.Add(st.now), s.Effects[:0], w.is("full"), !w.is("unanswered")
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	ref := func() any { st.n++; return st.n }
	batch := func() *Batch { return &Batch{Number: w.n("n"), Print: w.n("print"), Ref: ref()} }
	pos := Position{Incarnation: w.n("run"), LastID: w.n("last"), Incomplete: w.is("incomplete"), Departed: w.is("departed"), Ended: w.list("ended")}
	if w.is("left") {
		pos.Left = storyBegan.Add(time.Duration(w.n("left")) * time.Second)
	}
	var stored time.Time
	if w.is("stored") {
		stored = storyBegan.Add(time.Duration(w.n("stored")) * time.Second)
	}
	var errIf error
	if w.is("error") {
		errIf = errors.New("nobody answers")
	}
	if slices.Contains([]string{"page", "dump", "end", "replayed", "again", "whole"}, command) && r.Recovery() == 0 {
		return nil, errors.New("no recovery is under way")
	}
	switch command {
	case "new":
		created := s.Created
		*st = *newStory()
		s.Created = created
		for name, source := range map[string]Source{"deaf": Mute, "engine": Engine, "replay": Replay} {
			if w.is(name) {
				s.Source = source
			}
		}
		if w.is("hold") {
			s.HoldMessages = int(w.n("hold"))
		}
		if w.is("spill") {
			s.RecoverMessages = int(w.n("spill"))
		}
		return []string{st.status()}, nil
	case "stream":
		s.Created = storyStream(w.n("created"))
	case "look":
		s.Looks, s.LookEnd = s.Looks+1, w.n("end")
	case "message":
		r.Message(s, Message{Incarnation: w.n("run"), Events: st.events(w.list("ids"), w), Live: w.is("live"), Seq: w.n("seq"), Stored: stored, Ref: ref()})
	case "heartbeat":
		r.Heartbeat(s, Heartbeat{Incarnation: w.n("run"), Last: w.n("last"), Incomplete: w.is("lossy"), Live: w.is("live"), Seq: w.n("seq"), Stored: stored, Ref: ref()})
	case "spoilt":
		r.Unusable(s, w.n("id"), !w.is("other"), errors.New("a message cannot be used"))
	case "tick":
		d, err := time.ParseDuration(strings.Fields(rest)[0])
		if err != nil {
			return nil, err
		}
		st.now += d
		s.Now, s.Read, s.End = s.Now.Add(d), w.n("read"), w.n("end")
		r.Tick(s)
	case "page":
		r.Recovered(s, st.events(words{"": strings.Fields(rest)[0]}.list(""), w), ref())
	case "dump":
		r.Dump(s, Dump{Incarnation: w.n("run"), Last: w.n("last"), Lossy: w.is("lossy"), Partial: w.is("partial")})
	case "end":
		if r.Ended(s, Result{Err: errIf, Refused: w.is("refused"), Unplaced: w.is("unplaced")}) {
			say("in vain")
		}
	case "note":
		r.Noted(s, w.is("parent"), w.is("refused"))
	case "room":
		say("waited for it: %v", r.Room(s))
	case "void":
		r.Voided(s, w.n("last"))
	case "expect":
		r.Expect(s)
	case "contradict":
		r.Contradict(s)
	case "leave":
		d := Departure{At: storyBegan.Add(time.Duration(w.n("at")) * time.Second), Seq: w.n("seq"), Created: s.Created, Silent: w.is("silent")}
		if d.Silent && !w.is("seq") {
			d.Created = time.Time{} // nobody noted it
		}
		if w.is("created") {
			d.Created = storyStream(w.n("created"))
		}
		r.Leave(s, d)
	case "return":
		r.Return(s)
	case "told":
		r.Told(s, w.n("run"), w.n("last"))
	case "resume":
		say("resumed: %v", r.Resume(s, &pos))
	case "takeup":
		switch {
		case !r.Lags(s, &pos, w.n("seq")):
			say("the snapshot has no more")
		case pos.Departed:
			r.TakeDeparture(s, &pos, Departure{At: pos.Left, Seq: w.n("seq"), Created: s.Created}, w.is("present"))
		default:
			r.TakeUp(s, &pos, w.n("seq"))
		}
	case "connected":
		r.Connected(s)
	case "broken":
		r.Broken(s)
	case "silent":
		r.Silent(s)
	case "anew":
		r.Anew(s, Named)
	case "live":
		r.Live(s, batch())
	case "sent":
		r.Sent(s, batch())
	case "replayed":
		if !r.Replayed(s, batch()) {
			say("there is a hole before it")
		}
	case "again":
		say("again: events from %d", r.Again(s).From)
	case "whole":
		r.ReplayEnd(s)
	default:
		return nil, fmt.Errorf("unknown command %q", command)
	}
	for i := range s.Effects {
		say("%s", describe(&s.Effects[i]))
	}
	for c := (Contents{Cleared: w.is("clear")}); r.wire.unread; c = (Contents{}) {
		if w.is("lost") {
			c.Lost = errors.New("it cannot be read")
		}
		s.Effects = s.Effects[:0]
		r.Opened(s, c)
		for i := range s.Effects {
			say("%s", describe(&s.Effects[i]))
		}
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	return append(out, st.status()), nil
}

func describe(e *Effect) string {
	of := ""
	if e.Ref != nil {
		of = fmt.Sprintf(" (message %v)", e.Ref)
	}
	switch e.Kind {
	case Apply:
		var ids []string
		for i := range e.Events {
			s := fmt.Sprint(e.Events[i].ID)
			if e.Events[i].Incomplete {
				s += "?"
			}
			ids = append(ids, s)
		}
		return "apply " + strings.Join(ids, " ") + of
	case Drop:
		return fmt.Sprintf("drop %d: %v", e.N, e.Reason)
	case Gap:
		return fmt.Sprintf("gap %d to %d", e.From, e.To)
	case Restart:
		if e.Sign != NoSign {
			return "restart: " + e.Sign.String()
		}
	case Skip:
		return fmt.Sprintf("skipped %d to %d", e.From, e.To)
	case Want:
		return fmt.Sprintf("want: %v", e.Cause)
	case Ask:
		what := fmt.Sprintf("events from %d", e.Ask.From)
		if !e.Ask.NotBefore.IsZero() {
			what += ", later"
		}
		if e.Ask.From == 0 {
			what = "a dump"
		}
		return fmt.Sprintf("ask %d: %s", e.Number, what)
	}
	return e.Kind.String() + of
}

// status is the rank's in one line.
func (st *story) status() string {
	s := st.rank.Status()
	line := fmt.Sprintf("%v run %d, event %d", s.State, s.Incarnation, s.LastID)
	if s.Held > 0 {
		line += fmt.Sprintf(", %d held", s.Held)
	}
	if s.Why != nil {
		line += ": " + s.Why.Error()
	}
	return line
}
