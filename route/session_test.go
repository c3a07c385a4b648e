package route

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/shard"
)

// TestSessionGivesWay: a session stays where it is while that costs no more than what it
// should find there is worth, whatever the mode; many requests at once spread.
func TestSessionGivesWay(t *testing.T) {
	for _, mode := range []string{"auto", "round-robin", "least-loaded", "random"} {
		t.Run(mode, func(t *testing.T) {
			r, _, c := open(t, func(c *Config) { c.Settings.Mode, c.Index = mode, nil }, workers(3)...)
			var at *Session
			ask := func(id string, tokens int) uint64 {
				a := best(t, r, Prompt{Local: []uint64{}, Length: tokens, Guessed: true}, Options{RequestID: id, Session: at})
				at = &Session{a.RankID, tokens}
				return a.Worker
			}
			first := ask("a", 3000)
			r.MarkPrefillComplete("a")
			r.Free("a")
			for i := range 20 { // one after the other
				c.add(time.Second)
				if w := ask(fmt.Sprint(i), 3000); w != first {
					t.Fatalf("request %d went to worker %d after %d, which was idle", i, w, first)
				}
				r.MarkPrefillComplete(fmt.Sprint(i))
				r.Free(fmt.Sprint(i))
			}
			at = &Session{at.Rank, 3000}
			if w := ask("once", 3000); w != first {
				t.Errorf("worker %d", w)
			}
			r.MarkPrefillComplete("once") // one stream is no reason to leave 3,000 cached tokens
			if w := ask("again", 3000); w != first {
				t.Errorf("it left for one stream")
			}
			got := map[uint64]int{}
			for i := range 32 {
				at = &Session{a1(first), 100}
				got[ask(fmt.Sprint("s", i), 100)]++
			}
			for w := range uint64(3) {
				if w+1 != first && got[w+1] < 6 {
					t.Errorf("32 streams at once: %v", got)
				}
			}
		})
	}
}

// TestSessionsAndTheIndex: what is looked up of a prompt says what a session has cached where; equal ranks are
// told apart as those of any request. Of a prompt whose tokens are not known the session says it.
func TestSessionsAndTheIndex(t *testing.T) {
	r, space, _ := open(t, func(c *Config) { c.Settings.Mode = "auto" }, workers(2)...)
	store(t, space, 1, 0, 0, numbers(500, 100)...) // so the other one is taken of equal ones
	at := &Session{a1(1), 3000}
	if w := best(t, r, Prompt{Local: numbers(1, 750)}, Options{Session: at}).Worker; w != 2 {
		t.Errorf("nothing of the prompt is cached anywhere: worker %d, want 2, which holds less", w)
	}
	best(t, r, Prompt{Local: numbers(10_000, 100)}, Options{RequestID: "load", Worker: ptr(uint64(1))}) // about 7 ms
	p := Prompt{Local: []uint64{}, Length: 3000, Guessed: true}
	if w := best(t, r, p, Options{Session: at}).Worker; w != 1 {
		t.Errorf("the prompt is not known: worker %d, want 1, where the session was", w)
	}
	if w := best(t, r, p, Options{Session: &Session{a1(1), 10}}).Worker; w != 2 {
		t.Errorf("ten tokens hold the session at worker %d, which is busy", w)
	}
}

func a1(worker uint64) shard.RankID { return shard.RankID{Worker: worker} }

// TestGuessedPrompts: a prompt whose tokens are not known weighs what its length is
// taken for, and is nobody's because it holds nothing.
func TestGuessedPrompts(t *testing.T) {
	for _, mode := range []string{"auto", "kv", "dynamo"} {
		t.Run(mode, func(t *testing.T) {
			r, space, c := open(t, func(c *Config) { c.Settings.Mode = mode }, workers(3)...)
			store(t, space, 1, 0, 0, numbers(1, 5)...)
			store(t, space, 2, 0, 0, numbers(1, 5)...)
			got := map[uint64]int{}
			for i := range 64 {
				got[best(t, r, Prompt{Local: []uint64{}, Length: 200, Guessed: true}, Options{RequestID: fmt.Sprint(i), Watched: true}).Worker]++
			}
			for w := range uint64(3) {
				if got[w+1] < 15 {
					t.Errorf("64 at once: %v", got)
				}
			}
			for i := range 64 {
				c.add(time.Millisecond)
				r.MarkPrefillComplete(fmt.Sprint(i))
				r.Free(fmt.Sprint(i))
			}
			for _, l := range r.Loads() {
				if l.DecodeBlocks != 0 || l.PrefillTokens != 0 {
					t.Errorf("load is left: %+v", l)
				}
			}
			clear(got)
			for i := range 64 {
				id := fmt.Sprint("one", i)
				got[best(t, r, Prompt{Local: []uint64{}, Length: 200, Guessed: true}, Options{RequestID: id}).Worker]++
				r.Free(id)
			}
			for w := range uint64(3) {
				if got[w+1] < 8 {
					t.Errorf("64 one after the other: %v", got)
				}
			}
		})
	}
}

// TestWholeAnswers: an answer that does not stream counts as a prompt to compute only as
// long as that should take; its tokens, told at its end, teach how fast its worker is.
func TestWholeAnswers(t *testing.T) {
	r, _, c := open(t, func(c *Config) { c.Settings.Mode = "auto" }, workers(2)...)
	for i := range 4 {
		best(t, r, Prompt{Local: numbers(1000*i, 100)}, Options{RequestID: fmt.Sprint("whole", i), Worker: ptr(uint64(1)), Whole: true})
	}
	if l := r.Loads()[0]; l.Prefilling != 4 {
		t.Errorf("%+v", l)
	}
	for i := range 12 {
		id := fmt.Sprint("stream", i)
		best(t, r, Prompt{Local: numbers(10_000+1000*i, 100)}, Options{RequestID: id, Worker: ptr(uint64(2))})
		r.MarkPrefillComplete(id)
	}
	c.add(time.Second)
	for i := range 20 {
		if a := best(t, r, Prompt{Local: numbers(100_000+1000*i, 100)}, Options{}); a.Worker != 1 {
			t.Fatalf("request %d goes to the worker with 12 streams and not to that with 4 whole answers", i)
		}
	}
	if l := r.Loads()[0]; l.Prefilling != 0 || l.Requests != 4 {
		t.Errorf("%+v", l)
	}
	before := r.Stats().Unknown
	if !r.MarkPrefillComplete("whole0") || !r.Free("whole0") || r.Stats().Unknown != before {
		t.Error("the end of an answer whose prompt was over is taken for a stranger's")
	}

	r, _, c = open(t, func(c *Config) { c.Settings.Mode = "auto" }, workers(2)...)
	for i := range 600 {
		id := fmt.Sprint(i)
		a := best(t, r, Prompt{Local: numbers(1000*i, 100+i%300)}, Options{RequestID: id, Whole: true})
		const slower = 5
		c.add(time.Duration(slower * (16 + 0.0175*float64(a.NewTokens) + 6.2*100) * float64(time.Millisecond)))
		r.MarkPrefillComplete(id)
		r.Output(id, 101)
		r.Free(id)
	}
	if e := r.times.speeds.decode.at(1, 1000); e < 20 || e > 40 {
		t.Errorf("a token takes %.1f ms, want about 30", e)
	}
}

// TestFurtherPromptsAreLoad: what a request has beside its first prompt is load, also in
// blocks, and all of it ends with the request.
func TestFurtherPromptsAreLoad(t *testing.T) {
	r, _, _ := open(t, nil, workers(1)...)
	size := r.cfg.BlockSize
	p := Prompt{Tokens: make([]uint32, 4*size), Rest: 20 * size}
	best(t, r, p, Options{RequestID: "a"})
	if l := r.Loads()[0]; l.PrefillTokens != 24*size || l.DecodeBlocks != 24 || p.Size() != 24*size {
		t.Errorf("%+v for a prompt of %d", l, p.Size())
	}
	r.Free("a")
	if l := r.Loads()[0]; l.PrefillTokens != 0 || l.DecodeBlocks != 0 {
		t.Errorf("load is left: %+v", l)
	}
}
