package sysmem

import (
	"bufio"
	"bytes"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// Limit returns the bytes that the process may use; false if that is unknown.
func Limit() (int64, bool) { return limit(os.DirFS("/")) }

// limit is Limit with the root of the file system given.
func limit(root fs.FS) (int64, bool) {
	least, ok := machine(root)
	note := func(n int64, known bool) {
		if known && n > 0 && (!ok || n < least) {
			least, ok = n, true
		}
	}
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return least, ok
	}
	// Lines of number:controllers:path; see cgroups(7). Every group on the way
	// up may limit. In a container the path may be the host's, and the
	// container's own group stands at the top.
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		f := strings.SplitN(lines.Text(), ":", 3)
		if len(f) != 3 {
			continue
		}
		dir, file := "sys/fs/cgroup", "memory.max"
		if f[1] != "" {
			if !strings.Contains(","+f[1]+",", ",memory,") {
				continue
			}
			dir, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		}
		for p := path.Clean("/" + f[2]); ; p = path.Dir(p) {
			note(number(root, path.Join(dir, p, file)))
			if p == "/" {
				break
			}
		}
	}
	return least, ok
}

// machine returns the machine's memory.
func machine(root fs.FS) (int64, bool) {
	text, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "MemTotal:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			return kib << 10, err == nil
		}
	}
	return 0, false
}

// number returns the number in a file; false if there is none, like "max".
func number(root fs.FS, name string) (int64, bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}
