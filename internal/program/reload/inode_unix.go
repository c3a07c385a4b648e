//go:build unix

package reload

import (
	"os"
	"syscall"
)

// inode returns the file's number: a file that was renamed over another has
// its own, even with the same size and time.
func inode(info os.FileInfo) any {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return nil
}
