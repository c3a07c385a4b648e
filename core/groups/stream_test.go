package groups

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/event/engine"
)

// What is said of a prompt by what vLLM has published, read as a replica reads it, is what
// vLLM would reuse: of layouts whose full attention has blocks of the least size, wherever a
// Table calls itself exact.
func TestStreamsOfVLLM(t *testing.T) {
	path := os.Getenv("KVATLAS_GROUPS")
	if path == "" {
		t.Skip("the payloads are recorded by make test-groups")
	}
	in, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close() //nolint:errcheck // only read
	var of said
	var dec *engine.Decoder
	var table *Table
	var index *core.Radix
	var told []event.CacheGroup
	size, asked, exact, hits, wrong, layouts, fits := 0, 0, 0, 0, 0, 0, 0
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<24)
	for number := 1; lines.Scan(); number++ {
		var s struct {
			said
			Payload string
			IDs     []uint32
		}
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			t.Fatalf("line %d: %v", number, err)
		}
		switch {
		case s.Groups != nil:
			of, size, told, table, index = s.said, 0, nil, NewTable(), core.NewRadix(core.Options{})
			layouts++
			for _, g := range s.Groups {
				if g.Kind == "full_attention" && g.BlockSize == s.Unit && size == 0 {
					size = s.Unit
				}
			}
			if size > 0 {
				fits++
				if dec, err = engine.NewDecoder(engine.Config{BlockSize: size}); err != nil {
					t.Fatal(err)
				}
			}
		case size == 0:
		case s.Payload != "":
			raw, err := hex.DecodeString(s.Payload)
			if err != nil {
				t.Fatal(err)
			}
			b, err := dec.Decode(raw)
			if err != nil || b.Lost > 0 {
				t.Fatalf("line %d: %+v, %v", number, b, err)
			}
			if b.Groups != nil {
				told = b.Groups
			}
			for i := range b.Events {
				ev := &b.Events[i]
				table.Apply(ev, true)
				switch {
				case ev.Group > 0:
				case ev.Kind == event.Stored:
					index.Store(0, ev, true)
				case ev.Kind == event.Removed:
					index.Remove(0, ev, true)
				default:
					index.Clear(0, 0, true)
				}
			}
		case s.IDs != nil:
			asked++
			model, err := NewModel(event.MergeCacheGroups(registered(of), told), uint32(size))
			if err != nil || !table.Exact(model) {
				continue
			}
			local, err := blockhash.LocalHashes(nil, s.IDs, size, blockhash.Options{Seed: blockhash.Seed("", "")})
			if err != nil {
				t.Fatal(err)
			}
			var m core.Matches
			index.Find(local, &m)
			var depth [event.NumTiers]uint32
			m.EachHolder(func(_ core.Holder, d [event.NumTiers]uint32) { depth = d })
			exact++
			have := int(table.Reusable(model, blockhash.SequenceHashes(nil, local), len(s.IDs), depth)[0]) * size
			if s.Reused > 0 {
				hits++
			}
			if have != s.Reused {
				if wrong++; wrong <= 20 {
					t.Errorf("line %d: %d of %d tokens are reusable, vLLM reuses %d; groups %+v unit %d", number, have, len(s.IDs), s.Reused, of.Groups, of.Unit)
				}
			}
		}
	}
	if err := lines.Err(); err != nil || exact < asked/2 || hits < exact/10 || asked == 0 {
		t.Errorf("of %d prompts %d were answered exactly, %d with a hit, %v", asked, exact, hits, err)
	}
	t.Logf("%d of %d layouts; of %d prompts %d exactly, %d with a hit, %d differences", fits, layouts, asked, exact, hits, wrong)
}

// registered is what vLLM's events do not tell: the size of a chunk, and which groups EAGLE
// flags. Full attention that comes first is group 0.
func registered(of said) (list []event.CacheGroup) {
	main := false
	for i, g := range of.Groups {
		number := uint8(i + 1)
		if !main && g.Kind == "full_attention" {
			number, main = 0, true
		}
		if number == 0 || g.Chunk > 0 || g.Eagle {
			list = append(list, event.CacheGroup{Number: number, Kind: g.Kind, BlockSize: uint32(g.BlockSize), Span: uint32(max(g.Window, g.Chunk)), Eagle: g.Eagle})
		}
	}
	return list
}
