package follow

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/core"
)

// play does a move.
func (w *world) play(m move) {
	k := m.kind % 64
	if w.bare && k >= 9 && k <= 13 { // what is known of such a stream is the order of its ids
		k = 21
	}
	switch k {
	case 0:
		w.did["restarts"]++
		if w.bare && w.run().last() < 2 {
			break // the first event once more may be a copy
		}
		w.restartEngine()
		if w.bare { // nobody hears of it before its next event
			w.publish(move{a: 0, b: m.b})
		}
	case 1:
		w.leave(time.Duration(int(m.b)-128)*time.Minute, m.a%3 == 0)
		if m.a%2 == 0 {
			w.hear()
		}
	case 2, 3:
		w.register()
	case 4, 5:
		w.hear()
	case 6:
		w.silent = !w.silent
	case 7:
		w.did["replicas"]++
		w.hear()
		if s := w.kept; s != nil && m.a%2 == 0 && s.of.Equal(w.created) && s.next <= w.end()+1 && !w.live {
			w.openReplica()
			w.index, w.next = copyOf(s.index), s.next
			w.do(func(st *Step) {
				if s.known && !w.rank.Resume(st, &s.pos) {
					w.index = core.NewOracle()
				}
			})
		} else {
			w.openReplica()
			w.next = w.first
		}
	case 8:
		w.note()
		if pos, ok := w.rank.Position(); !w.notes[0] && !w.notes[1] {
			w.did["snapshots"]++
			w.kept = &keptSnapshot{pos: pos, known: ok, index: copyOf(w.index), next: w.next, of: w.created}
		}
	case 9: // made again
		if !w.live && w.end() > 0 {
			w.did["remade"]++
			w.created = w.created.Add(time.Second)
			w.stream, w.first = nil, 1
			w.void(0)
		}
	case 10: // rolled back
		if n := uint64(m.a) % 32; !w.live && n < uint64(len(w.stream)) && w.first+n <= w.next {
			w.did["rolled back"]++
			w.stream = w.stream[:n]
			w.void(w.end())
		}
	case 11: // trimmed, and a snapshot is taken up perhaps
		n := uint64(m.a) % 32
		if m.b%2 == 1 && !w.live {
			w.hear()
			w.openReplica()
			w.next = w.first
			w.read(int(m.b) % 8)
		}
		if s := w.kept; s != nil && s.next > w.first {
			n = s.next - w.first
		}
		if !w.live && n < uint64(len(w.stream)) {
			w.did["trimmed"]++
			w.stream, w.first = w.stream[n:], w.first+n
			if s := w.kept; s != nil && s.known && w.next < w.first && s.next >= w.first && s.of.Equal(w.created) {
				w.takeUp(s)
			}
		}
	case 12:
		w.did["told"]++
		w.do(func(s *Step) { w.rank.Told(s, w.run().incarnation, w.run().last()) })
	case 13: // a registration that comes late
		w.did["told late"]++
		old := w.runs[int(m.a)%len(w.runs)]
		w.do(func(s *Step) { w.rank.Told(s, old.incarnation, min(old.last(), uint64(m.b))) })
	case 14:
		w.budget = int(m.a % 8)
		w.did["full"]++
	case 15:
		w.room()
	case 16, 17, 18:
		w.pass(time.Duration(m.a) * 100 * time.Millisecond)
	case 19, 20:
		w.note()
	case 21, 22, 23:
		w.beat()
	case 24, 25, 26, 27, 28, 29, 30, 31:
		w.answer(m.a)
	case 32, 33, 34, 35, 36, 37, 38, 39, 40, 41:
		w.read(1 + int(m.a%6))
	case 42:
		w.lossyNow = true
	case 43:
		if w.run().last() > 0 && m.a%4 == 0 {
			w.partial = w.run().last()
			w.did["partial"]++
		}
	default:
		w.publish(m)
	}
	w.now = w.now.Add(50 * time.Millisecond)
}

func (w *world) room() {
	w.budget = -1
	w.do(func(s *Step) { w.rank.Room(s) })
}

func (w *world) beat() {
	if w.bare {
		return // such a wire has none
	}
	w.send(sent{run: len(w.runs) - 1, to: w.run().last(), beat: true, lossy: w.lossyNow})
}

func (w *world) takeUp(s *keptSnapshot) {
	var lags bool
	if w.do(func(st *Step) { lags = w.rank.Lags(st, &s.pos, s.next-1) }); !lags {
		return
	}
	w.did["taken up"]++
	w.begun()
	w.next = s.next
	if s.pos.Departed {
		w.index.Clear(0, 0, true)
		w.do(func(st *Step) {
			w.rank.TakeDeparture(st, &s.pos, Departure{At: s.pos.Left, Seq: s.next - 1, Created: w.created}, !w.gone)
		})
		return
	}
	index := copyOf(s.index)
	w.do(func(st *Step) {
		n := len(st.Effects)
		if w.rank.TakeUp(st, &s.pos, s.next-1) {
			i := slices.IndexFunc(st.Effects[n:], func(e Effect) bool { return e.Kind == Commit })
			w.index = index
			st.Effects = st.Effects[n+i:]
		}
	})
}

// fresh verifies that what is not shown as incomplete is what the rank held after
// the event that its status names.
func (w *world) fresh() error {
	if w.fail != nil {
		return w.fail
	}
	st := w.rank.Status()
	switch {
	case w.gone && len(w.unheard) == 0 && !w.spoke && st.State != Departed:
		return fmt.Errorf("a rank that left is %+v", st)
	case w.back && w.gone && st.State == Departed:
		return errors.New("a rank that is back is taken as gone")
	}
	if st.State == Contested {
		return errors.New("one process after the other is taken for two at a time")
	}
	if st.Incomplete || w.notes[0] || w.notes[1] {
		return nil
	}
	w.did["checked"]++
	have := oracleDigest(w.index)
	if st.State == Departed || st.State == Unknown {
		if have != 0 {
			return fmt.Errorf("%v, and the index is not empty", st.State)
		}
		return nil
	}
	if i := slices.IndexFunc(w.runs, func(e *engineRun) bool { return e.incarnation == st.Incarnation }); !w.bare && i >= 0 {
		if i < w.newest {
			return fmt.Errorf("run %d is followed by the one before, %d", w.runs[w.newest].incarnation, st.Incarnation)
		}
		if w.newest >= 0 {
			w.newest = i
		}
	}
	for i := len(w.runs) - 1; i >= 0; i-- {
		if e := w.runs[i]; e.incarnation == st.Incarnation && st.LastID <= e.last() && e.at(st.LastID) == have {
			return nil
		}
		if !w.bare && w.runs[i].incarnation == st.Incarnation {
			break
		}
	}
	return fmt.Errorf("%+v is shown as fresh, and is not", st)
}

// converge has the faults end, and the replica come to what the publisher has.
func (w *world) converge() error {
	w.silent, w.budget = false, -1
	w.register()
	w.hear()
	for round := range 500 {
		if w.bare || w.run().last() == 0 || w.lossyNow || w.partial > 0 {
			w.publish(move{}) // all is cleared
		}
		w.beat()
		w.do(func(s *Step) { w.rank.Told(s, w.run().incarnation, w.run().last()) })
		w.read(1 << 20)
		for range 200 {
			w.note()
			w.room()
			if w.asking == nil && !w.notes[0] && !w.notes[1] {
				break
			}
			w.answer(0)
			if err := w.fresh(); err != nil {
				return err
			}
		}
		if err := w.fresh(); err != nil {
			return err
		}
		st := w.rank.Status()
		if st.Incarnation == w.run().incarnation && st.LastID == w.run().last() && !st.Incomplete && st.Held == 0 && st.State != Departed {
			if oracleDigest(w.index) != oracleDigest(w.run().oracle) {
				return errors.New("the index differs from the oracle in the end")
			}
			w.did["rounds"] += round
			return nil
		}
		w.pass(5 * time.Second)
	}
	return fmt.Errorf("not converged: %+v, want %d of run %d", w.rank.Status(), w.run().last(), w.run().incarnation)
}
