//go:build !amd64

package jsonscan

func (r *Reader) vector32(dst []uint32, _ int) []uint32 { return dst }

func (r *Reader) vector64(dst []uint64, _ int, _ bool) []uint64 { return dst }

func vectorPlain(_ []byte, i int) int { return i }
