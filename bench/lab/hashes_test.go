package lab

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/trace"
)

// TestHasher: what is kept of a session's last prompt changes no hash, whether the next one goes on it, leaves it, or is
// another session's in its place.
func TestHasher(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 67))
	kept := 0
	for range 60 {
		idTokens, engine := 1+rng.IntN(40), mock.Config{BlockSize: 1 + rng.IntN(40), HashSeed: rng.Uint64()}
		x, plain := newHasher(idTokens, &engine), trace.NewHasher(idTokens, engine.BlockSize)
		var last, was [4][]uint64
		var h hashes
		for serial := range 200 {
			of := rng.IntN(len(last))
			ids := slices.Clone(last[of])
			ids = ids[:len(ids)-rng.IntN(min(len(ids), 8)+1)]
			for range rng.IntN(30) {
				ids = append(ids, uint64(rng.IntN(3)))
			}
			if len(ids) > 200 || rng.IntN(20) == 0 {
				ids = ids[:0]
			}
			last[of] = ids
			r := trace.Request{IDs: ids, Input: 1 + rng.IntN(len(ids)*idTokens+50), Output: rng.IntN(60), Serial: uint64(serial), Session: []string{"", "a", "b", "c"}[of]}
			x.hash(&h, &r)
			local := plain.Output(plain.Prompt(nil, &r), &r)
			names := engine.Names(nil, local)
			if h.blocks != r.Input/engine.BlockSize || !slices.Equal(h.local, local) || !slices.Equal(h.names, names) {
				t.Fatalf("ids of %d tokens, blocks of %d: request %+v has %d, %v and %v, want %v and %v", idTokens, engine.BlockSize, r, h.blocks, h.local, h.names, local, names)
			}
			if prompt := h.local[:h.blocks]; r.Session != "" {
				kept += shared(prompt, was[of])
				was[of] = slices.Clone(prompt)
			}
		}
	}
	if kept < 10_000 {
		t.Errorf("%d blocks were known: it shows little", kept)
	}
}

// shared returns how many leading hashes two prompts share.
func shared(a, b []uint64) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// BenchmarkHasher is the hashes of a request, of sessions that take turns.
func BenchmarkHasher(b *testing.B) {
	src, err := Workload("uniform", 0, 640, 1)
	if err != nil {
		b.Fatal(err)
	}
	requests := make([]trace.Request, 20_000)
	for i := range requests {
		if err := src.Next(&requests[i]); err != nil {
			b.Fatal(err)
		}
	}
	c := Default()
	x := newHasher(src.IDTokens(), &c.Engine)
	var h hashes
	for i := 0; b.Loop(); i++ {
		x.hash(&h, &requests[i%len(requests)])
	}
}
