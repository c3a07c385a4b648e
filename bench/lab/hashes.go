package lab

import (
	"hash/maphash"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/trace"
)

// hashes are what engines and the index know a request by: the local hashes of its prompt and of its
// answer, and the engine hashes of both.
type hashes struct {
	local, names []uint64
	blocks       int // of the prompt
}

// hasher makes the hashes of requests. As most prompts of a session go on the one before, it keeps that one's. It belongs to
// one goroutine.
type hasher struct {
	trace           *trace.Hasher
	engine          *mock.Config
	idTokens, block int
	seed            maphash.Seed
	last            [lastPrompts]lastPrompt // by session
}

// lastPrompt is what the last request of a session, or of another one in the same place, had.
type lastPrompt struct {
	ids, local, names []uint64 // of the prompt's complete blocks
}

// lastPrompts is how many are kept: at 640 requests a second these have 7 of 8 blocks of what all would have.
const lastPrompts = 1 << 14

func newHasher(idTokens int, engine *mock.Config) *hasher {
	return &hasher{
		trace: trace.NewHasher(idTokens, engine.BlockSize), engine: engine,
		idTokens: idTokens, block: engine.BlockSize, seed: maphash.MakeSeed(),
	}
}

// hash puts the request's hashes into h.
func (x *hasher) hash(h *hashes, r *trace.Request) {
	last := &x.last[maphash.String(x.seed, r.Session)%lastPrompts]
	same := 0
	for same < len(last.ids) && same < len(r.IDs) && last.ids[same] == r.IDs[same] {
		same++
	}
	h.blocks = r.Input / x.block
	known := min(same*x.idTokens/x.block, len(last.local), h.blocks)
	h.local = x.trace.Prompt(append(h.local[:0], last.local[:known]...), r)
	h.names = x.engine.Names(append(h.names[:0], last.names[:known]...), h.local[known:])
	if r.Session != "" {
		last.ids = append(last.ids[:same], r.IDs[same:]...)
		last.local = append(last.local[:known], h.local[known:]...)
		last.names = append(last.names[:known], h.names[known:]...)
	}
	h.local = x.trace.Output(h.local, r)
	h.names = x.engine.Names(h.names, h.local[h.blocks:])
}
