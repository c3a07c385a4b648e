package deploy

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// imageEnv returns the environment of the image, whose volume is the directory.
func imageEnv(t *testing.T, volume string) (env []string) {
	t.Helper()
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	_, image, _ := strings.Cut(string(text), "\nFROM scratch\n")
	for line := range strings.Lines(image) {
		if set, ok := strings.CutPrefix(line, "ENV "); ok {
			env = append(env, strings.ReplaceAll(strings.TrimSpace(set), "/var/lib/kvatlas", volume))
		}
	}
	return env
}

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
