//go:build !unix

package proc

func whenClosed(int, func()) {}
