package groups

import (
	"bufio"
	"cmp"
	"encoding/json"
	"io"
	"os"
	"testing"
)

// said is one line of testdata/vllm_groups.py.
type said struct {
	Groups []struct {
		Kind      string
		BlockSize int `json:"block_size"`
		Window    int
		Chunk     int
		Eagle     bool
	}
	Unit   int
	Events []struct {
		Stored  []uint64
		Removed []uint64
		Cleared bool
		Group   int
	}
	Tokens int // of a prompt; 0: the line is none
	Hashes []uint64
	Reused int
	Asked  int // in the last line
}

// What vLLM's own cache would reuse of each prompt is what is said of it, by the events
// that it had published by then.
func TestAgreesWithVLLM(t *testing.T) {
	in, err := os.Open(cmp.Or(os.Getenv("KVATLAS_GROUPS"), "testdata/vllm-0.33.0.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close() //nolint:errcheck // only read
	judge(t, in)
}

func judge(t *testing.T, in io.Reader) {
	t.Helper()
	type block struct {
		group int
		hash  uint64
	}
	var layout *Layout
	var of said
	held := map[block]int{} // copies
	asked, hits, wrong, end := 0, 0, 0, 0
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<24)
	for number := 1; lines.Scan(); number++ {
		var s said
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			t.Fatalf("line %d: %v", number, err)
		}
		switch {
		case s.Groups != nil:
			var list []Group
			for _, g := range s.Groups {
				kind, ok := ParseKind([]byte(g.Kind))
				if !ok {
					t.Fatalf("line %d: kind %q", number, g.Kind)
				}
				list = append(list, Group{Kind: kind, Block: g.BlockSize, Span: max(g.Window, g.Chunk), Eagle: g.Eagle})
			}
			var err error
			if layout, err = New(list, s.Unit); err != nil {
				t.Fatalf("line %d: %v", number, err)
			}
			of = s
			clear(held)
		case s.Tokens > 0:
			have := layout.Reusable(s.Tokens, func(group, end int) bool { return held[block{group, s.Hashes[end/s.unit(of)-1]}] > 0 })
			asked++
			if s.Reused > 0 {
				hits++
			}
			if have != s.Reused {
				if wrong++; wrong <= 20 {
					t.Errorf("line %d: %d of %d tokens are reusable, vLLM reuses %d; groups %+v unit %d", number, have, s.Tokens, s.Reused, of.Groups, of.Unit)
				}
			}
		case s.Asked > 0:
			end = s.Asked
		}
		for _, e := range s.Events {
			if e.Cleared {
				clear(held)
			}
			for _, h := range e.Stored {
				held[block{e.Group, h}]++
			}
			for _, h := range e.Removed {
				if held[block{e.Group, h}]--; held[block{e.Group, h}] < 0 {
					t.Fatalf("line %d: a block is removed that was not stored", number)
				}
			}
		}
	}
	if err := lines.Err(); err != nil || asked == 0 || asked != end || hits < asked/10 {
		t.Errorf("%d prompts asked of %d, %d with a hit, %v", asked, end, hits, err)
	}
	t.Logf("%d prompts, %d with a hit, %d differences", asked, hits, wrong)
}

func (*said) unit(layout said) int { return layout.Unit }
