//go:build !unix

package reload

import "os"

func inode(os.FileInfo) any { return nil }
