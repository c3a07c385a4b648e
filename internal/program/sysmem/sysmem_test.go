package sysmem

import (
	"testing"
	"testing/fstest"
)

func TestLimitIsTheLeast(t *testing.T) {
	const meminfo = "MemTotal:       16384 kB\nMemFree: 1 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
		ok    bool
	}{
		"nothing known": {nil, 0, false},
		"machine":       {map[string]string{"proc/meminfo": meminfo}, 16 << 20, true},
		"group without limit": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n",
		}, 16 << 20, true},
		"group above limits": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "9000000\n", "sys/fs/cgroup/a/memory.max": "8000000\n",
		}, 8000000, true},
		"container with the host's path": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/kubepods/x\n", "sys/fs/cgroup/memory.max": "7000000\n",
		}, 7000000, true},
		"version 1": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "5:cpu,cpuacct:/d\n4:memory:/d\n",
			"sys/fs/cgroup/memory/d/memory.limit_in_bytes": "6000000\n",
		}, 6000000, true},
		"version 1 without limit": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "4:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 16 << 20, true},
	} {
		t.Run(name, func(t *testing.T) {
			root := fstest.MapFS{}
			for file, text := range c.files {
				root[file] = &fstest.MapFile{Data: []byte(text)}
			}
			if got, ok := limit(root); got != c.want || ok != c.ok {
				t.Errorf("%d, %v; want %d, %v", got, ok, c.want, c.ok)
			}
		})
	}
}
