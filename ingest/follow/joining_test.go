package follow

import (
	"slices"
	"testing"
)

// joiner is a rank of an engine that gives snapshots, with its last input's effects.
type joiner struct {
	*testing.T
	Rank
	step Step
}

func newJoiner(t *testing.T) *joiner {
	j := &joiner{T: t, Rank: New(1), step: Step{Now: storyBegan, Limits: &Limits{Source: Engine, Snapshots: true,
		HoldMessages: 1, HoldBytes: 1 << 20, RecoverMessages: 1, GapWait: 5e9, RecoverMin: 1e8, RecoverMax: 1e10}}}
	j.do((*Rank).Broken)
	j.do((*Rank).Connected)
	return j
}

func (j *joiner) do(input func(*Rank, *Step)) {
	j.step.Effects = j.step.Effects[:0]
	input(&j.Rank, &j.step)
}

// live gives the rank the process's batch, in which there is nothing.
func (j *joiner) live(process, number uint64) {
	applied := false
	j.do(func(r *Rank, s *Step) {
		r.Live(s, &Batch{Number: number, Print: 1000*process + number, Process: process})
		for _, e := range s.Effects {
			applied = applied || e.Kind == Apply
		}
	})
	if applied {
		j.do(func(r *Rank, s *Step) { r.Opened(s, Contents{}) })
	}
}

func (j *joiner) snapshot(process, number uint64) (taken bool) {
	j.do(func(r *Rank, s *Step) {
		if taken = r.Snapshot(s, &Batch{Number: number, Process: process}); taken {
			r.Ended(s, Result{})
		}
	})
	return taken
}

func (j *joiner) is(want State, last uint64) {
	j.Helper()
	if st := j.Status(); st.State != want || st.LastID != last || st.Incomplete != (want != Following) {
		j.Fatalf("%+v, want %v after %d", st, want, last)
	}
	if err := j.check(); err != nil {
		j.Fatal(err)
	}
}

func TestSnapshotIsFreshOnceTheWireReachesIt(t *testing.T) {
	for _, at := range []uint64{100, 101} { // what it has last, or what follows
		j := newJoiner(t)
		if !j.snapshot(7, 100) {
			t.Fatal("it is not taken")
		}
		j.is(Recovering, 101)
		j.live(7, 40) // it may be on its way still, or the snapshot from the future
		j.is(Recovering, 101)
		j.live(7, at)
		j.is(Following, at+1)
	}
	j := newJoiner(t)
	j.live(7, 3) // the first that came
	if j.is(Recovering, 0); !j.snapshot(7, 3) {
		t.Fatal("it is not taken")
	}
	j.is(Following, 4)

	j = newJoiner(t)
	j.snapshot(7, 1<<64-1) // before the first batch
	j.live(7, 0)
	j.is(Following, 1)
}

func TestSnapshotsThatTheWireDoesNotGoOnFrom(t *testing.T) {
	for name, of := range map[string]struct{ process, number uint64 }{
		"older than what came": {7, 2}, "of another process": {8, 10}, "of one that is not named": {0, 10},
	} {
		j := newJoiner(t)
		j.live(7, 3)
		if before := j.Rank; j.snapshot(of.process, of.number) || before.last != j.last || before.rec != j.rec || len(j.step.Effects) > 0 {
			t.Errorf("%s: it changes %+v", name, j.Status())
		}
	}
	j := newJoiner(t)
	if j.snapshot(0, 10) {
		t.Error("one is taken that names no process")
	}
	j.snapshot(7, 10)
	j.live(7, 11)
	j.do((*Rank).Broken)
	j.do((*Rank).Connected)
	if j.snapshot(7, 5) {
		t.Error("one is taken that is older than the index")
	}
	if j.snapshot(7, 20); j.Incarnation() != 2 {
		t.Errorf("incarnation %d: the process is the same", j.Incarnation())
	}
	j.do((*Rank).Broken)
	j.do((*Rank).Connected)
	if !j.snapshot(8, 5) || j.Incarnation() != 3 {
		t.Errorf("one of another process: %+v", j.Status())
	}
	if j.snapshot(8, 6) {
		t.Error("one is taken that nobody asked for")
	}
}

func TestSnapshotThatIsNeverReachedIsAskedForAgain(t *testing.T) {
	j := newJoiner(t)
	j.snapshot(7, 1000)
	for n := range uint64(3) {
		if j.live(7, n); j.Recovery() != 0 {
			t.Fatal("it is asked for again at once")
		}
	}
	j.step.Now = j.step.Now.Add(j.step.RecoverMax)
	if j.live(7, 3); j.Recovery() == 0 || !j.Wanting(false) {
		t.Errorf("%+v: it is not asked for again", j.Status())
	}
	if !j.snapshot(7, 3) {
		// What the wire says of its process goes before what the snapshot said.
		t.Error("the one that the wire goes on from is not taken")
	}
	j.is(Following, 4)
}

// A batch with a number that was taken, and other content, may be of another process. A
// snapshot says more than the replay that would tell.
func TestSnapshotEndsDoubt(t *testing.T) {
	j := newJoiner(t)
	j.step.Source, j.Rank = Replay, New(1)
	j.do((*Rank).Broken)
	j.do(func(r *Rank, s *Step) { r.Resume(s, &Position{Incarnation: 1, LastID: 5, Print: 1}) })
	j.do((*Rank).Connected)
	j.do(func(r *Rank, s *Step) { r.Replayed(s, &Batch{Number: 4, Print: 1}) })
	j.do((*Rank).ReplayEnd)
	if j.live(9, 4); j.wire.doubt == nil {
		t.Fatal("it is not in doubt")
	}
	if !j.snapshot(9, 2) { // it began anew, and has not come as far
		t.Fatal("it is not taken")
	}
	if !slices.ContainsFunc(j.step.Effects, func(e Effect) bool { return e.Kind == Done }) {
		t.Error("the batch in doubt is kept")
	}
	j.is(Recovering, 3)
	j.live(9, 3)
	j.is(Following, 4)
}
