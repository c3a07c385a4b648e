package blockhash

import (
	"bufio"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// hashCase is one line of testdata/hashes.jsonl.
type hashCase struct {
	Name      string     `json:"name"`
	Tokens    string     `json:"tokens"`
	BlockSize int        `json:"block_size"`
	Lora      string     `json:"lora_name"`
	Salt      string     `json:"cache_salt"`
	Eagle     bool       `json:"eagle"`
	MM        [][]string `json:"mm_hashes"`
	Local     []string   `json:"local"`
	Sequence  []string   `json:"sequence"`
}

func hashCases(t testing.TB) []hashCase {
	t.Helper()
	f, err := os.Open("testdata/hashes.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var cases []hashCase
	s := bufio.NewScanner(f)
	for s.Scan() {
		var c hashCase
		if err := json.Unmarshal(s.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return cases
}

func hexes(t testing.TB, s []string) []uint64 {
	t.Helper()
	var out []uint64
	for _, x := range s {
		v, err := strconv.ParseUint(x, 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, v)
	}
	return out
}

func tokenList(t testing.TB, s string) []uint32 {
	t.Helper()
	number := func(s string) uint32 {
		v, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		return uint32(v)
	}
	var out []uint32
	if from, to, ok := strings.Cut(s, ".."); ok {
		for v := number(from); v < number(to); v++ {
			out = append(out, v)
		}
		return out
	}
	for _, x := range strings.Split(s, ",") {
		out = append(out, number(x))
	}
	return out
}

func TestHashesAgreeWithDynamo(t *testing.T) {
	cases := hashCases(t)
	if len(cases) != 16 {
		t.Fatalf("%d cases, want 16", len(cases))
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			o := Options{Seed: Seed(c.Lora, c.Salt), Eagle: c.Eagle}
			for _, m := range c.MM {
				o.MM = append(o.MM, hexes(t, m))
			}
			local, err := LocalHashes(nil, tokenList(t, c.Tokens), c.BlockSize, o)
			if err != nil {
				t.Fatal(err)
			}
			if want := hexes(t, c.Local); !slices.Equal(local, want) {
				t.Errorf("local hashes %x, want %x", local, want)
			}
			if got, want := SequenceHashes(nil, local), hexes(t, c.Sequence); !slices.Equal(got, want) {
				t.Errorf("sequence hashes %x, want %x", got, want)
			}
		})
	}
}

func TestZeroHashOptionsAreThePlainSeed(t *testing.T) {
	tokens := []uint32{1, 2, 3, 4}
	a, _ := LocalHashes(nil, tokens, 2, Options{})
	b, _ := LocalHashes(nil, tokens, 2, Options{Seed: Seed("", "")})
	if !slices.Equal(a, b) {
		t.Errorf("%x and %x differ", a, b)
	}
}

func TestHashesAppend(t *testing.T) {
	got, err := LocalHashes([]uint64{9}, []uint32{1, 2}, 1, Options{})
	if err != nil || len(got) != 3 || got[0] != 9 {
		t.Fatalf("%v, %v", got, err)
	}
	// A sequence begins with its first local hash, whatever dst held before.
	seq := SequenceHashes([]uint64{9}, got[1:])
	if len(seq) != 3 || seq[0] != 9 || seq[1] != got[1] || seq[2] != NextSequenceHash(got[1], got[2]) {
		t.Errorf("%x", seq)
	}
}

func TestBlockSizeBounds(t *testing.T) {
	for _, size := range []int{-1, 0, MaxBlockSize + 1, 1 << 30} {
		if _, err := LocalHashes(nil, []uint32{1}, size, Options{}); !errors.Is(err, ErrBlockSize) {
			t.Errorf("block size %d: error %v", size, err)
		}
	}
	for _, size := range []int{1, MaxBlockSize} {
		if _, err := LocalHashes(nil, []uint32{1}, size, Options{Eagle: true}); err != nil {
			t.Errorf("block size %d: %v", size, err)
		}
	}
}

func TestBlocksCountsCompleteOnes(t *testing.T) {
	for _, c := range []struct {
		n, size int
		eagle   bool
		want    int
	}{{0, 4, false, 0}, {3, 4, false, 0}, {4, 4, false, 1}, {11, 4, false, 2}, {0, 4, true, 0}, {4, 4, true, 0}, {5, 4, true, 1}, {9, 4, true, 2}, {5, 0, false, 0}, {-9, 4, false, 0}, {math.MinInt, 4, true, 0}} {
		if got := Blocks(c.n, c.size, c.eagle); got != c.want {
			t.Errorf("Blocks(%d, %d, %v) = %d, want %d", c.n, c.size, c.eagle, got, c.want)
		}
	}
}

func TestHashingInPlaceEqualsHashingACopy(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		tokens := make([]uint32, rng.IntN(MaxBlockSize+2))
		for i := range tokens {
			tokens[i] = rng.Uint32()
		}
		seed := rng.Uint64()
		if a, b := hashTokens(tokens, seed), hashTokensCopied(tokens, seed); a != b {
			t.Fatalf("%d tokens: %x and %x", len(tokens), a, b)
		}
	}
}

func TestMultimodalOrderDoesNotMatterAndStays(t *testing.T) {
	tokens := []uint32{1, 2, 3, 4}
	mm := []uint64{9, 3, 3, 1 << 63}
	if LocalHash(tokens, 0, mm) != LocalHash(tokens, 0, []uint64{1 << 63, 3, 9, 3}) {
		t.Error("order changes the hash")
	}
	if !slices.Equal(mm, []uint64{9, 3, 3, 1 << 63}) {
		t.Errorf("the caller's hashes became %v", mm)
	}
	if LocalHash(tokens, 0, mm) == LocalHash(tokens, 0, []uint64{3, 9, 1 << 63}) {
		t.Error("a repeated hash does not count")
	}
	many := make([]uint64, 1000) // beyond what fits the stack buffer
	if LocalHash(tokens, 0, many) == LocalHash(tokens, 0, many[1:]) {
		t.Error("a thousand objects hash as 999")
	}
}

func TestMultimodalHash(t *testing.T) {
	hex64 := "1122334455667788" + strings.Repeat("00", 24)
	if got := MultimodalHash([]byte(hex64)); got != 0x1122334455667788 {
		t.Errorf("64 digits: %x", got)
	}
	if got := MultimodalHash([]byte(strings.ToUpper("aabbccddeeff0011" + strings.Repeat("f", 48)))); got != 0xaabbccddeeff0011 {
		t.Errorf("upper-case digits: %x", got)
	}
	// XXH3-64 of nothing with seed 0, from the XXH3 specification's test values.
	if got := MultimodalHash(nil); got != 0x2d06800538d394c2 {
		t.Errorf("no bytes: %x", got)
	}
	if MultimodalHash([]byte(hex64[:63])) == 0x1122334455667788 || MultimodalHash([]byte(hex64[:63]+"g")) == 0x1122334455667788 {
		t.Error("an identifier that is not 64 digits is read as digits")
	}
}

func TestHashingDoesNotAllocate(t *testing.T) {
	tokens := make([]uint32, 1024)
	local, seq := make([]uint64, 0, 64), make([]uint64, 0, 64)
	mm := [][]uint64{{1, 2}, {3}}
	if n := testing.AllocsPerRun(100, func() {
		local, _ = LocalHashes(local[:0], tokens, 16, Options{Seed: 5, MM: mm})
		seq = SequenceHashes(seq[:0], local)
		Seed("lora", "salt")
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkLocalHashes(b *testing.B) {
	for _, size := range []int{16, 64, 512} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			tokens := make([]uint32, 8192)
			for i := range tokens {
				tokens[i] = uint32(i)
			}
			var dst []uint64
			b.SetBytes(int64(4 * len(tokens)))
			for b.Loop() {
				dst, _ = LocalHashes(dst[:0], tokens, size, Options{})
			}
		})
	}
}

func BenchmarkSequenceHashes(b *testing.B) {
	local := make([]uint64, 512)
	var dst []uint64
	for b.Loop() {
		dst = SequenceHashes(dst[:0], local)
	}
}
