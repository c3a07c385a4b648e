package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// With --huge-pages the heap of the programs that have an index stands where they are asked for, and only then.
func TestHugePagesAreAskedForTheHeap(t *testing.T) {
	if is, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled"); err != nil || strings.Contains(string(is), "[never]") {
		t.Skip("no huge pages here")
	}
	// advised returns how many KiB of the process's mappings are advised so.
	advised := func(p *process) (size int) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", p.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		here := 0
		for line := range strings.Lines(string(text)) {
			if _, err := fmt.Sscanf(line, "Size: %d kB", &here); err == nil {
				continue
			}
			if strings.HasPrefix(line, "VmFlags:") && strings.Contains(line, " hg") {
				size += here
			}
		}
		return size
	}
	const little = 128 << 10 // what the index maps itself is less than that, and half of the memory more
	for _, huge := range []bool{false, true} {
		flag := fmt.Sprintf("--huge-pages=%v", huge)
		in := startIndexer(t, t.TempDir(), flag)
		router, _ := startRouter(t, t.TempDir(), "--nats=none", "--kv-events=false", "--model=m", "--engines=http://127.0.0.1:1", flag)
		for _, p := range []*process{in.process, router} {
			if n := advised(p); n >= little != huge {
				t.Errorf("%s %s: huge pages are asked for %d KiB", p.name, flag, n)
			}
		}
	}
}
