package follow

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// simulate plays the moves, the first of which says what kind of world it is.
func simulate(moves []move) (w *world, err error) {
	w = newWorld(moves[0].a, moves[0].b)
	for _, m := range moves[1:] {
		w.play(m)
		if err := w.fresh(); err != nil {
			return w, err
		}
	}
	if most := 4*len(moves) + 50; w.asked > most {
		return w, fmt.Errorf("asked %d times in %d moves", w.asked, len(moves))
	}
	return w, w.converge()
}

// lastWords has the stream made again, and a new run of the engine that sends into it and ends:
// nobody is there to be asked any more.
func (w *world) lastWords(m move) error {
	w.register()
	w.hear()
	for range 3 {
		for w.asking != nil {
			w.answer(200)
		}
		w.note()
		w.room()
	}
	w.silent = true
	w.restartEngine()
	w.created, w.stream, w.first = w.created.Add(time.Second), nil, 1
	w.void(0)
	for i := range 1 + m.a%40 {
		w.publish(move{a: i % 8, b: m.b + 11*i})
		if m.b%3 == 0 {
			w.read(1)
		}
		if (m.a+i)%4 == 0 {
			w.answer(0)
		}
	}
	for range 60 {
		w.read(1 << 20)
		w.note()
		w.answer(0)
		w.pass(time.Second)
		if err := w.fresh(); err != nil {
			return err
		}
	}
	if oracleDigest(w.index) != oracleDigest(w.run().oracle) {
		return fmt.Errorf("what was sent is in the stream, and not in the index: %+v", w.rank.Status())
	}
	return nil
}

// What a publisher sent into a stream that was made again is not lost with it.
func TestWhatAPublisherSaidLastIsHeld(t *testing.T) {
	for seed := range histories(t) / 2 {
		moves := randomMoves(seed)
		moves[0].a &^= 7 // with a stream and incarnations
		last := func(moves []move) error {
			w := newWorld(moves[0].a, moves[0].b)
			for _, m := range moves[1:] {
				w.play(m)
			}
			return w.lastWords(moves[0])
		}
		if err := last(moves); err != nil {
			short := shrink(moves, last)
			t.Fatalf("seed %d: %v; in short: %v\n%v", seed, err, last(short), tell(short))
		}
	}
}

func randomMoves(seed uint64) []move {
	rng := rand.New(rand.NewPCG(seed, 77))
	moves := make([]move, 30+rng.IntN(120))
	for i := range moves {
		x := rng.Uint64()
		moves[i] = move{uint8(x), uint8(x >> 8), uint8(x >> 16)}
	}
	moves[1+rng.IntN(len(moves)-1)].kind = 0 // the engine restarts: there is a fault in each
	return moves
}

// shrink returns a short part of the moves that still fails.
func shrink(moves []move, simulate func([]move) error) []move {
	for size := len(moves) / 2; size > 0; {
		shorter := false
		for at := 1; at+size <= len(moves); {
			try := slices.Delete(slices.Clone(moves), at, at+size)
			if err := simulate(try); err != nil {
				moves, shorter = try, true
			} else {
				at += size
			}
		}
		if !shorter || size > len(moves)/2 {
			size /= 2
		}
	}
	return moves
}

// tell returns the moves with what the rank is after each.
func tell(moves []move) string {
	var b strings.Builder
	w := newWorld(moves[0].a, moves[0].b)
	fmt.Fprintf(&b, "live %v, bare %v\n", w.live, w.bare)
	for _, m := range moves[1:] {
		before := maps.Clone(w.did)
		w.play(m)
		var did []string
		for _, k := range slices.Sorted(maps.Keys(w.did)) {
			if n := w.did[k] - before[k]; n > 0 && k != "checked" {
				did = append(did, fmt.Sprint(k, " ", n))
			}
		}
		fmt.Fprintf(&b, "{%d, %d, %d}: %v: %+v; the engine at %d of %d\n", m.kind%64, m.a, m.b, did, w.rank.Status(), w.run().last(), w.run().incarnation)
	}
	return b.String()
}

func fails(moves []move) error { _, err := simulate(moves); return err }

func histories(t testing.TB) uint64 {
	scale := 1
	if s := os.Getenv("KVATLAS_TEST_SCALE"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			t.Fatalf("KVATLAS_TEST_SCALE=%q: give a whole number from 1 on", s)
		}
		scale = n
	}
	return uint64(600 * scale)
}

// faults are what may go wrong with a publisher. A history has at least one.
var faults = []string{"restarts", "left", "lost", "spoilt", "late", "copies", "remade", "rolled back", "trimmed", "full", "replicas"}

// Whatever happens, and in whatever order: nothing stale is shown as fresh, and
// once the faults end the index is what the rank holds.
func TestEveryHistoryIsFollowed(t *testing.T) {
	begun := time.Now()
	all := map[string]int{}
	n := histories(t)
	for seed := range n {
		moves := randomMoves(seed)
		w, err := simulate(moves)
		if err != nil {
			short := shrink(moves, fails)
			_, why := simulate(short)
			t.Fatalf("seed %d: %v; in short: %v\n%v", seed, err, why, tell(short))
		}
		if !slices.ContainsFunc(faults, func(k string) bool { return w.did[k] > 0 }) {
			t.Errorf("seed %d has no fault", seed)
		}
		for k, n := range w.did {
			all[k] += n
		}
	}
	t.Logf("%d histories, %.0f a second: %v", n, float64(n)/time.Since(begun).Seconds(), all)
	for _, k := range append([]string{"taken up", "snapshots", "told", "told late", "gap", "commit", "overflow", "ask gap", "ask departed", "ask void", "ask room", "ask unusable",
		"partial", "ask behind", "ask discovery", "ask unknown_parent", "ended_incarnation", "worker_left", "duplicate", "checked"}, faults...) {
		if all[k] == 0 {
			t.Errorf("no history has %q", k)
		}
	}
}

// FuzzFollow has the fuzzer choose the moves.
func FuzzFollow(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(bytesOf(randomMoves(seed)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		moves := movesOf(b)
		if len(moves) == 0 {
			return
		}
		if _, err := simulate(moves); err != nil {
			short := shrink(moves, fails)
			_, why := simulate(short)
			t.Fatalf("%v; in short: %v\n%v", err, why, tell(short))
		}
	})
}

func bytesOf(moves []move) (b []byte) {
	for _, m := range moves {
		b = append(b, m.kind, m.a, m.b)
	}
	return b
}

func movesOf(b []byte) (moves []move) {
	for ; len(b) >= 3 && len(moves) < 400; b = b[3:] {
		moves = append(moves, move{b[0], b[1], b[2]})
	}
	return moves
}
