package lint

import (
	"strings"
	"testing"
)

// TestLocks shows that the rule of LOCKING.md finds each way to break it.
func TestLocks(t *testing.T) {
	const table = "Of `p.A.mu` and others.\n\n| held | taken | because |\n|---|---|---|\n| `p.A.mu` | `p.B.stat` | x |\n| `p.B.stat` | `p.C.mu` | x |\n"
	const src = "package p\nimport \"sync\"\ntype A struct { mu sync.Mutex }\ntype B struct { stat struct { sync.RWMutex; n int } }\ntype C struct { x int; mu sync.Mutex }\n"
	cases := []struct {
		name, text, src string
		want            string // part of each fault; empty for none
		n               int
	}{
		{"as it should be", table, src, "", 0},
		{"a lock is gone", table, strings.Replace(src, "x int; mu sync.Mutex", "mu int", 1), "no mutex p.C.mu", 1},
		{"one that the text names is gone", strings.Replace(table, "`p.A.mu` and", "`p.D.mu` and", 1), src, "no mutex p.D.mu", 1},
		{"a circle", table + "| `p.C.mu` | `p.A.mu` | x |\n", src, "and that under it", 3},
		{"itself", table + "| `p.C.mu` | `p.C.mu` | x |\n", src, "p.C.mu is taken under p.C.mu", 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f, err := parse("p/a.go", []byte(c.src))
			if err != nil {
				t.Fatal(err)
			}
			os, names, err := lockOrder(c.text)
			if err != nil {
				t.Fatal(err)
			}
			faults := checkLocks([]*file{f}, os, names)
			if len(faults) != c.n {
				t.Fatalf("faults %q, want %d", faults, c.n)
			}
			for _, f := range faults {
				if !strings.Contains(f, c.want) {
					t.Errorf("fault %q, want one with %q", f, c.want)
				}
			}
		})
	}
	for name, text := range map[string]string{"no table": "text", "a row of one": "| held | taken |\n|---|---|\n| `p.A.mu` | others |\n"} {
		if _, _, err := lockOrder(text); err == nil {
			t.Errorf("%s: it is taken", name)
		}
	}
}
