package lab

import (
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/route"
)

// TestTargets: told what requests are to keep, routers have more of them keep it; the result counts
// them alike for all policies, and without targets all are within.
func TestTargets(t *testing.T) {
	within := map[string]int{}
	for _, policy := range []string{"auto", "auto+targets"} {
		c := Default()
		c.Targets = route.Targets{FirstToken: 300 * time.Millisecond, Token: 30 * time.Millisecond}
		if err := c.SetPolicy(policy); err != nil {
			t.Fatal(err)
		}
		src, err := Workload("unshared", 1500, 55, 1)
		if err != nil {
			t.Fatal(err)
		}
		r := run(t, c, src)
		within[policy] = r.Within
		if first := r.ttft[r.Within-1]; r.Within < r.Requests/10 || first > 300 {
			t.Errorf("%s: %d of %d are within, the last of so many first tokens came after %.0f ms", policy, r.Within, r.Requests, first)
		}
	}
	if auto, told := within["auto"], within["auto+targets"]; told < auto+1500/4 {
		t.Errorf("%d of 1,500 are within targets without going by them, and %d with", auto, told)
	}
	src, err := Workload("unshared", 50, 45, 1)
	if err != nil {
		t.Fatal(err)
	}
	if r := run(t, Default(), src); r.Within != r.Requests {
		t.Errorf("without targets %d of %d are within", r.Within, r.Requests)
	}
}
