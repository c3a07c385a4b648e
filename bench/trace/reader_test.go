package trace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

func line(ms, input, output int, ids ...uint64) string {
	return fmt.Sprintf("{\"timestamp\":%d,\"input_length\":%d,\"output_length\":%d,\"hash_ids\":%s}\n",
		ms, input, output, strings.ReplaceAll(fmt.Sprint(ids), " ", ","))
}

func readAll(t *testing.T, in string, idTokens int) ([]Request, error) {
	t.Helper()
	r, err := NewReader("t", strings.NewReader(in), idTokens)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // reads from memory
	var all []Request
	var q Request
	for {
		if err := r.Next(&q); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return all, err
		}
		c := q
		c.IDs = slices.Clone(q.IDs)
		all = append(all, c)
	}
}

func TestReaderPlainAndZstd(t *testing.T) {
	text := line(0, 1000, 5, 0, 1) + "\n" + line(7, 512, 1, 0) + strings.TrimSuffix(line(7, 100, 1), "\n")
	var packed bytes.Buffer
	w, err := zstd.NewWriter(&packed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, in := range []string{text, packed.String()} {
		all, err := readAll(t, in, 512)
		if err != nil {
			t.Fatal(err)
		}
		if len(all) != 3 || all[1].Arrival != 7*time.Millisecond || all[2].Serial != 2 ||
			!slices.Equal(all[0].IDs, []uint64{0, 1}) || len(all[2].IDs) != 0 {
			t.Fatalf("got %+v", all)
		}
	}
}

func TestReaderErrorsNameTheLine(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		_, err := readAll(t, in, 512)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("got %v, want %s", err, want)
		}
	}
	good := line(5, 1000, 5, 0, 1)
	f(good+"{\n", "trace t, line 2: "+errTruncated.Error())
	f(good+"\n"+line(4, 10, 1), "line 3: the timestamp goes back from 5ms to 4ms")
	f(good+line(6, 1024, 1, 3), "line 2: 1 ids of 512 tokens do not fit an input_length of 1024")
	f(good+line(6, 512, 1, 3, 4), "line 2: 2 ids of 512 tokens do not fit an input_length of 512")
	f("\x28\xb5\x2f\xfdnonsense", "line 1: ")
}

func TestReaderBoundsLines(t *testing.T) {
	long := line(0, 512*100_000, 5, slices.Repeat([]uint64{1234567}, 100_000)...)
	if all, err := readAll(t, long+long, 512); err != nil || len(all) != 2 {
		t.Fatalf("%d requests, %v", len(all), err)
	}
	r, err := NewReader("t", strings.NewReader(line(0, 1, 1)+long), 512)
	if err != nil {
		t.Fatal(err)
	}
	r.maxLine = len(long) - 1
	var q Request
	if err := r.Next(&q); err != nil {
		t.Fatal(err)
	}
	if err := r.Next(&q); err == nil || !strings.Contains(err.Error(), "line 2: longer than") {
		t.Fatalf("got %v", err)
	}
}

func TestDetectIDTokens(t *testing.T) {
	f := func(text string, want int) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "trace")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := Open(path, 0)
		if want == 0 {
			if err == nil {
				t.Fatal("an ambiguous trace is accepted")
			}
			return
		}
		if err != nil || r.IDTokens() != want {
			t.Fatalf("got %v, %v; want %d", r, err, want)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	ids := func(n int) []uint64 { return make([]uint64, n) }
	f(line(0, 100, 1, 0)+line(0, 6758, 500, ids(14)...), 512)
	f(line(0, 18964, 107, ids(296)...), 64)
	f(line(0, 64, 1, 0)+line(0, 128, 1, ids(2)...)+line(0, 190, 1, ids(2)...), 64)
	f(line(0, 100, 1, 0), 0)
	f(line(0, 1025, 1, ids(2)...), 0)
}

// Blocks are those of the tokens, at any block size, and only complete ones.
func TestHasherFollowsTokens(t *testing.T) {
	r := Request{Input: 1000, Output: 101, IDs: []uint64{7, 1 << 40, 9}, OutputIDs: []uint64{3}, Serial: 5}
	for _, block := range []int{1, 3, 16, 64, 100, 512, 1000, 1001, 1100, 1101} {
		h := NewHasher(384, block)
		got := h.Output(h.Prompt(nil, &r), &r)
		tokens := h.Tokens(nil, &r, 0, r.Input+r.Output-1)
		var want []uint64
		for ; len(tokens) >= block; tokens = tokens[block:] {
			var b []byte
			for _, x := range tokens[:block] {
				b = append(b, byte(x), byte(x>>8), byte(x>>16), byte(x>>24))
			}
			want = append(want, xxh3.HashSeed(b, 1337))
		}
		if !slices.Equal(got, want) || len(h.Prompt(nil, &r)) != r.Input/block {
			t.Fatalf("block size %d: %d hashes, want %d", block, len(got), len(want))
		}
	}
}

// Prompts share blocks exactly as far as they share ids, and an answer that is
// named is the same content as part of the next prompt.
func TestHasherSharesPrefixes(t *testing.T) {
	h := NewHasher(64, 16)
	a := Request{Input: 180, Output: 40, IDs: []uint64{0, 1, 2}, Serial: 0}
	b := Request{Input: 170, Output: 40, IDs: []uint64{0, 1, 3}, Serial: 1}
	c := Request{Input: 180, Output: 40, IDs: []uint64{0, 1, 2}, Serial: 2}
	common := func(x, y []uint64) (n int) {
		for n < min(len(x), len(y)) && x[n] == y[n] {
			n++
		}
		return n
	}
	if n := common(h.Prompt(nil, &a), h.Prompt(nil, &b)); n != 8 {
		t.Errorf("two shared ids of 64 tokens give %d shared blocks of 16", n)
	}
	if !slices.Equal(h.Prompt(nil, &a), h.Prompt(nil, &c)) {
		t.Error("the same ids give different prompts")
	}
	if n := common(h.Output(nil, &a), h.Output(nil, &c)); n != 0 {
		t.Errorf("unnamed answers share %d blocks", n)
	}
	turn := Request{Input: 128, Output: 65, IDs: []uint64{0, 1}, OutputIDs: []uint64{20}}
	next := Request{Input: 256, IDs: []uint64{0, 1, 20, 21}, Serial: 1}
	if whole := h.Output(h.Prompt(nil, &turn), &turn); len(whole) != 12 || common(whole, h.Prompt(nil, &next)) != 12 {
		t.Error("the next prompt does not extend the answer")
	}
	partial := Request{Input: 100, IDs: []uint64{0}, Serial: 1}
	if n := common(h.Prompt(nil, &partial), h.Prompt(nil, &a)); n != 4 {
		t.Errorf("content beyond the ids is shared: %d blocks", n)
	}
}

// The public traces, where they are present, read to the numbers that their
// description gives.
func TestConversationTrace(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	path := filepath.Join("..", "..", "..", "shared", "traces", "conversation.jsonl.zst")
	if _, err := os.Stat(path); err != nil {
		t.Skip("no ../shared/traces")
	}
	r, err := Open(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // only read
	h := NewHasher(r.IDTokens(), 16)
	var q Request
	var ids, blocks int
	var buf []uint64
	for {
		if err := r.Next(&q); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		ids += len(q.IDs)
		buf = h.Prompt(buf[:0], &q)
		blocks += len(buf)
	}
	if r.IDTokens() != 512 || q.Serial != 12_030 || ids != 288_500 || blocks < 30*ids {
		t.Fatalf("%d tokens an id, %d requests, %d ids, %d blocks", r.IDTokens(), q.Serial+1, ids, blocks)
	}
}

func BenchmarkParseLine(b *testing.B) {
	text := []byte(line(0, 64*1900, 100, slices.Repeat([]uint64{1234567}, 1900)...))
	b.SetBytes(int64(len(text)))
	var q Request
	for b.Loop() {
		if err := parseLine(text, &q); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkHasherPrompt(b *testing.B) {
	q := Request{Input: 64 * 1900, IDs: make([]uint64, 1900)}
	h := NewHasher(64, 16)
	var buf []uint64
	for b.Loop() {
		buf = h.Prompt(buf[:0], &q)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(buf)), "ns/block")
}
