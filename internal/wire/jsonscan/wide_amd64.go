package jsonscan

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// vectors reports whether the machine has what wide_amd64.s takes: Intel's since Ice
// Lake, AMD's since Zen 4.
var vectors = cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VBMI && cpu.X86.HasAVX512VBMI2 &&
	cpu.X86.HasBMI1 && cpu.X86.HasBMI2 && cpu.X86.HasPOPCNT

// vector32 takes plain elements of up to eight digits from the position, 64 bytes at a
// time, up to where anything is not plain; the position stays at an element.
func (r *Reader) vector32(dst []uint32, limit int) []uint32 {
	k, room := len(dst), min(cap(dst), limit)
	if !vectors || room-k < mostWide || len(r.b)-r.off < wide {
		return dst
	}
	taken, read := wide32(unsafe.SliceData(dst[k:room]), room-k, &r.b[r.off], len(r.b)-r.off)
	r.off += read
	return dst[:k+taken]
}

// vector64 is vector32 for numbers of up to twenty digits; with signed they may be
// negative.
func (r *Reader) vector64(dst []uint64, limit int, signed bool) []uint64 {
	k, room := len(dst), min(cap(dst), limit)
	if !vectors || room <= k || len(r.b)-r.off < wide {
		return dst
	}
	var signs uint64
	if signed {
		signs = ^signs
	}
	taken, read := wide64(unsafe.SliceData(dst[k:room]), room-k, &r.b[r.off], len(r.b)-r.off, signs)
	r.off += read
	return dst[:k+taken]
}

const mostWide = 64 / len("0,") // elements of 64 bytes

//go:noescape
func wide32(dst *uint32, room int, b *byte, n int) (taken, read int)

//go:noescape
func wide64(dst *uint64, room int, b *byte, n int, signs uint64) (taken, read int)

// vectorPlain is plain for 64 bytes at a time, as far as there are so many; it may return less.
func vectorPlain(b []byte, i int) int {
	if !vectors || len(b)-i < 2*64 { // of few it is no sooner
		return i
	}
	return i + plain512(&b[i], len(b)-i)
}

//go:noescape
func plain512(b *byte, n int) (at int)
