package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// The results of a row, worst last.
const (
	resultPassed  = "passed"
	resultSkipped = "skipped"
	resultFailed  = "FAILED"
)

// runTests runs the rows' tests, a package at a time, and returns how each ended.
func runTests(rows []row, flags []string) (map[test]string, error) {
	byPackage := make(map[string][]string)
	var packages []string
	for _, r := range rows {
		for _, t := range r.tests {
			if byPackage[t.pkg] == nil {
				packages = append(packages, t.pkg)
			}
			if !slices.Contains(byPackage[t.pkg], t.name) {
				byPackage[t.pkg] = append(byPackage[t.pkg], t.name)
			}
		}
	}
	ended := make(map[test]string)
	for _, pkg := range packages {
		names := byPackage[pkg]
		fmt.Printf("%s: %d tests\n", pkg, len(names))
		args := append([]string{"test", "-json", "-count=1", "-timeout=14m", "-run", "^(" + strings.Join(names, "|") + ")$"}, flags...)
		cmd := exec.Command("go", append(args, "./"+pkg)...) //nolint:gosec // what faults.txt names
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := cmd.Start(); err != nil {
			return nil, fmt.Errorf("the go command: %w", err)
		}
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 64<<20) // a test may log a lot in one line
		for lines.Scan() {
			var e struct{ Action, Test string }
			if json.Unmarshal(lines.Bytes(), &e) != nil || e.Test == "" {
				continue
			}
			switch t := (test{pkg, e.Test}); e.Action {
			case "pass":
				ended[t] = resultPassed
			case "skip":
				ended[t] = resultSkipped
			case "fail":
				ended[t] = resultFailed
				fmt.Printf("%s %s FAILED\n", pkg, e.Test)
			}
		}
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait() // what failed is told by test; one that never ended is none of ended
	}
	return ended, nil
}

// result returns the worst of the row's tests.
func (r *row) result(ended map[test]string) string {
	worst := resultPassed
	for _, t := range r.tests {
		switch ended[t] {
		case resultPassed:
		case resultSkipped:
			if worst == resultPassed {
				worst = resultSkipped
			}
		default: // one that did not end, too
			worst = resultFailed
		}
	}
	return worst
}
