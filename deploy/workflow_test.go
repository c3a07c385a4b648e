package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// Each job of a workflow ends, has no more rights than it names, asks for what the Makefile has, and
// uses no action that is not pinned by its commit.
func TestWorkflowsAskForWhatThereIs(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	list, err := filepath.Glob("../.github/workflows/*.yaml")
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}
	for _, path := range list {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var w struct {
			Permissions map[string]string
			Jobs        map[string]struct {
				Needs    string
				Timeout  int `yaml:"timeout-minutes"`
				Strategy struct{ Matrix struct{ Run []string } }
				Steps    []struct{ Run, Uses string }
			}
		}
		if err := yaml.Unmarshal(text, &w); err != nil {
			t.Fatal(path, err)
		}
		if len(w.Permissions) != 1 || w.Permissions["contents"] != "read" {
			t.Errorf("%s: a job may %v where it says nothing else", path, w.Permissions)
		}
		made := map[string]bool{}
		for name, job := range w.Jobs {
			if _, there := w.Jobs[job.Needs]; job.Needs != "" && !there || job.Timeout == 0 {
				t.Errorf("%s: %s needs %q, and ends after %d minutes", path, name, job.Needs, job.Timeout)
			}
			runs := job.Strategy.Matrix.Run
			for _, s := range job.Steps {
				if runs = append(runs, s.Run); s.Uses != "" && !regexp.MustCompile(`@[0-9a-f]{40}$`).MatchString(s.Uses) {
					t.Errorf("%s: %s uses %s, which is not pinned by a commit", path, name, s.Uses)
				}
			}
			for _, run := range runs {
				for _, line := range regexp.MustCompile(`(?m)^\s*make (.*)$`).FindAllStringSubmatch(run, -1) {
					for target := range strings.FieldsSeq(line[1]) {
						if made[target] = true; !strings.Contains(target, "=") && !strings.Contains(string(makefile), "\n"+target+":") {
							t.Errorf("%s: %s: there is no make %s", path, name, target)
						}
					}
				}
				if strings.Contains(run, "bash .ci/run") {
					made["test"] = true
				}
			}
		}
		for _, target := range []string{"test", "lint", "lint-workflow", "test-32", "test-deploy", "vuln", "test-release", "release"} {
			if !made[target] {
				t.Errorf("%s does not make %s", path, target)
			}
		}
	}
}
