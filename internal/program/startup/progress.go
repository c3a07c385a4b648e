package startup

import (
	"sync/atomic"
	"time"
)

// Progress counts what a start loads. It is safe for concurrent use; the zero
// value is ready.
type Progress struct {
	phase       atomic.Pointer[string] // nil: Connecting
	begun       atomic.Int64           // of the phase, Unix nanoseconds
	done, total atomic.Uint64
	blocks      atomic.Uint64
}

// Begin begins a phase. How much a peer gives is not known.
func (p *Progress) Begin(phase string) {
	if phase == Copying {
		p.total.Store(0)
	}
	p.begun.Store(time.Now().UnixNano())
	p.phase.Store(&phase)
}

// Read counts bytes that were read, of total more to read than was known. Its
// numbers, and those of Loaded, are taken back as their two's complement.
func (p *Progress) Read(done, total uint64) {
	p.total.Add(total)
	p.done.Add(done)
}

// Loaded counts blocks.
func (p *Progress) Loaded(blocks uint64) { p.blocks.Add(blocks) }

// Report returns how far it is.
func (p *Progress) Report() Report {
	r := Report{Phase: Connecting, Bytes: p.done.Load(), BytesTotal: p.total.Load(), Blocks: p.blocks.Load()}
	if phase := p.phase.Load(); phase != nil {
		r.Phase = *phase
		if r.BytesTotal > 0 {
			r.left(time.Unix(0, p.begun.Load()), r.Bytes, r.BytesTotal-min(r.Bytes, r.BytesTotal))
		}
	}
	return r
}
