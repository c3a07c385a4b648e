package core_test

import (
	"fmt"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// TestRaceDetectorSeesComparisons: comparing is assembly, which the detector
// does not see by itself, from 16 words on.
func TestRaceDetectorSeesComparisons(t *testing.T) {
	for _, words := range []int{1, 7, 15, 16, 64, 256, 300, 2000} {
		t.Run(fmt.Sprint(words), func(t *testing.T) {
			t.Parallel()
			published, prompt := chain(1, words), chain(1, words)
			racetest.Expect(t, true,
				func() { published[words*2/3] = 1 << 40 },
				func() { core.MatchLen(published, prompt) })
		})
	}
	t.Run("what is not written", func(t *testing.T) {
		t.Parallel()
		published, prompt := chain(1, 300), chain(1, 256)
		racetest.Expect(t, false,
			func() { published[256] = 1 << 40 },
			func() { core.MatchLen(published, prompt) })
	})
}

// TestRaceDetectorSeesLookups: a lookup beside a writer that changes a block in
// place is a race, and one beside a writer that publishes as it should is none.
func TestRaceDetectorSeesLookups(t *testing.T) {
	for name, blocks := range map[string]int{"short": 5, "long": 300, "of pieces": 3000} {
		for _, fault := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, %v", name, fault), func(t *testing.T) {
				t.Parallel()
				x, c := core.NewRadix(core.Options{}), chain(1, blocks)
				ev := event.Event{Kind: event.Stored, Engine: c, Local: c}
				x.Store(0, &ev, false)
				var m core.Matches
				racetest.Expect(t, fault,
					func() {
						if fault {
							x.Overwrite(1, uint32(blocks)*2/3, 1<<40)
							return
						}
						more := event.Event{Kind: event.Stored, HasParent: true, Parent: c[blocks-1], Engine: []uint64{1 << 40}, Local: []uint64{1 << 40}}
						x.Store(0, &more, false)
						x.Remove(0, &ev, false)
						x.Store(0, &ev, false)
					},
					func() {
						for range 100 {
							x.Find(c, &m)
						}
					})
			})
		}
	}
}

// TestRaceDetectorSeesHashes: the writer alone reads engine hashes and their
// directory; where they are many they are in mapped memory.
func TestRaceDetectorSeesHashes(t *testing.T) {
	const many, one = 300_000, 100_000 // not the end of the chain, which is found without the directory
	for what, overwrite := range map[string]func(x *core.Radix){
		"arena":     func(x *core.Radix) { x.OverwriteHash(one, 1<<40) },
		"directory": func(x *core.Radix) { x.OverwriteEntry(one) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			x := core.NewRadix(core.Options{})
			c := chain(1, many)
			x.Store(0, &event.Event{Kind: event.Stored, Engine: c, Local: c}, false)
			racetest.Expect(t, true, func() { overwrite(x) }, func() { x.Knows(0, one) })
		})
	}
}
