//go:build !linux

package hugemem

func mapWords(int) []uint64 { return nil }

func unmapWords([]uint64) {}

func advise([]byte) {}

func offered() bool { return false }
