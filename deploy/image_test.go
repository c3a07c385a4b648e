package deploy

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// What is kept out of the image's build is nothing that git has: a file that is
// missing there would make the programs call themselves modified.
func TestTheImageIsBuiltFromAllThatGitHas(t *testing.T) {
	if err := exec.Command("git", "-C", "..", "rev-parse", "--git-dir").Run(); err != nil {
		t.Skip("not in a git checkout, or without git")
	}
	ignored, err := os.ReadFile("../.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	for pattern := range strings.FieldsSeq(string(ignored)) {
		out, err := exec.Command("git", "-C", "..", "ls-files", "--", ":(glob)"+pattern, ":(glob)"+pattern+"/**").Output()
		if err != nil || len(bytes.TrimSpace(out)) > 0 {
			t.Errorf("%s keeps files of the repository out: %s %v", pattern, out, err)
		}
	}
}
