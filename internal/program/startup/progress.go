package startup

import (
	"sync/atomic"
	"time"
)

// Progress counts what a start loads. It is safe for concurrent use; the zero
// value is ready.
type Progress struct {
	phase       atomic.Pointer[phase] // nil: Connecting
	done, total atomic.Uint64
	blocks      atomic.Uint64
}

type phase struct {
	name  string
	begun time.Time
}

// Begin begins a phase. How much a peer gives is not known.
func (p *Progress) Begin(name string) {
	if name == Copying {
		p.total.Store(0)
	}
	p.phase.Store(&phase{name, time.Now()})
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
	if at := p.phase.Load(); at != nil {
		r.Phase = at.name
		if r.BytesTotal > 0 {
			r.left(at.begun, r.Bytes, r.BytesTotal-min(r.Bytes, r.BytesTotal))
		}
	}
	return r
}
