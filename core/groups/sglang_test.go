package groups

import (
	"bufio"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/event/engine"
)

// What SGLang publishes tells exactly what its full attention holds, with EAGLE too, so that is what it
// reuses of a model that has nothing else. Of windows and states it tells nothing: there full attention's depth is
// a bound, and how much of it the release reuses is logged (docs/http.md has the figures).
func TestCachesOfSGLang(t *testing.T) {
	in, err := os.Open(cmp.Or(os.Getenv("KVATLAS_SGLANG"), "testdata/sglang-0.5.23.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close() //nolint:errcheck // only read
	type sum struct{ prompts, hits, whole, bound, reused int }
	sums := map[string]*sum{}
	var dec *engine.Decoder
	var index *core.Radix
	var of struct {
		Kind string
		Page int
	}
	lines, wrong := bufio.NewScanner(in), 0
	lines.Buffer(nil, 1<<24)
	for number := 1; lines.Scan(); number++ {
		var s struct {
			Kind         string
			Page         int
			Payload      string
			IDs          []uint32
			Reused, Full int
		}
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			t.Fatalf("line %d: %v", number, err)
		}
		switch {
		case s.Kind != "":
			of.Kind, of.Page, index = s.Kind, s.Page, core.NewRadix(core.Options{})
			if dec, err = engine.NewDecoder(engine.Config{BlockSize: s.Page}); err != nil {
				t.Fatal(err)
			}
			if sums[s.Kind] == nil {
				sums[s.Kind] = &sum{}
			}
		case s.Payload != "":
			raw, err := hex.DecodeString(s.Payload)
			if err != nil {
				t.Fatal(err)
			}
			b, err := dec.Decode(raw)
			if err != nil || b.Lost > 0 {
				t.Fatalf("line %d: %+v, %v", number, b, err)
			}
			for i := range b.Events {
				switch ev := &b.Events[i]; ev.Kind {
				case event.Stored:
					index.Store(0, ev, true)
				case event.Removed:
					index.Remove(0, ev, true)
				default:
					index.Clear(0, 0, true)
				}
			}
		case s.IDs != nil:
			local, err := blockhash.LocalHashes(nil, s.IDs[:len(s.IDs)-1], of.Page, blockhash.Options{Seed: blockhash.Seed("", ""), Eagle: of.Kind == "eagle"})
			if err != nil {
				t.Fatal(err)
			}
			var m core.Matches
			index.Find(local, &m)
			bound, total := 0, sums[of.Kind]
			m.EachHolder(func(_ core.Holder, d [event.NumTiers]uint32) { bound = int(d[0]) * of.Page })
			total.prompts++
			total.bound += bound
			total.reused += s.Reused
			if bound > 0 {
				total.hits++
			}
			if bound == s.Reused {
				total.whole++
			}
			exact := of.Kind == "full" || of.Kind == "eagle"
			if bound != s.Full || bound < s.Reused || exact && bound != s.Reused {
				if wrong++; wrong <= 20 {
					t.Errorf("line %d: of %d tokens full attention has %d here and %d there, SGLang reuses %d; %+v", number, len(s.IDs), bound, s.Full, s.Reused, of)
				}
			}
		}
	}
	kinds := []string{"full", "eagle", "window", "state", "window+state"}
	for _, kind := range kinds {
		s := sums[kind]
		if s == nil || s.hits < s.prompts/10 {
			t.Errorf("%s: of the prompts too few were cached: %+v", kind, s)
			continue
		}
		t.Logf("%-12s of %d prompts %d with a hit in full attention; %d answers equal; %.3f of the bound reused", kind, s.prompts, s.hits, s.whole, float64(s.reused)/float64(s.bound))
	}
	if err := lines.Err(); err != nil || len(sums) != len(kinds) {
		t.Error(err, len(sums))
	}
}
