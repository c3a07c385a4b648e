package deploy

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// What people may ask make for is what it prints.
func TestMakePrintsItsTargets(t *testing.T) {
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("there is no make")
	}
	make := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), "make", append([]string{"-s", "-C", ".."}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("make %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	var printed []string
	for line := range strings.Lines(make("help")) {
		if f := strings.Fields(line); len(f) > 0 {
			printed = append(printed, f[0])
		}
	}
	_, list, _ := strings.Cut(make("-p", "-n", "help"), "\n.PHONY: ")
	list, _, _ = strings.Cut(list, "\n")
	phony := strings.Fields(list)
	if len(phony) == 0 {
		t.Fatal("make has no targets")
	}
	for _, target := range phony {
		if target != "programs" && !slices.Contains(printed, target) { // that one is a part of others
			t.Errorf("make does not print %s", target)
		}
	}
}
