//go:build !unix

package main

import "os"

func takeTerminal() (giveBack func()) { return func() {} }

func isTerminal(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}
