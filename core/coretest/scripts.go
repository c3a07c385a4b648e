package coretest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Scripts runs every script that matches the pattern: commands, each followed by a line of
// four dashes and what it prints, and by an empty line. Lines that begin with # are comments.
// begin is called for each script: run carries a command out and returns what it prints, end
// is asked at the script's end. With KVATLAS_TEST_REWRITE=1 what commands print is written
// into the scripts instead.
func Scripts(t *testing.T, pattern string, begin func() (run func(line string) ([]string, error), end func() error)) {
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no script matches %s (%v)", pattern, err)
	}
	rewrite := os.Getenv("KVATLAS_TEST_REWRITE") == "1"
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			run, end := begin()
			var rewritten []string
			lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
			for n := 0; n < len(lines); n++ {
				if lines[n] == "" {
					continue
				}
				if strings.HasPrefix(lines[n], "#") {
					rewritten = append(rewritten, lines[n])
					continue
				}
				at := n
				have, err := run(lines[n])
				if err != nil {
					t.Fatalf("%s:%d: %v", file, at+1, err)
				}
				var want []string
				if n+1 < len(lines) && lines[n+1] == "----" {
					for n += 2; n < len(lines) && lines[n] != ""; n++ {
						want = append(want, lines[n])
					}
				}
				rewritten = append(rewritten, lines[at])
				if len(have) > 0 {
					rewritten = append(append(rewritten, "----"), have...)
				}
				rewritten = append(rewritten, "")
				if !rewrite && !slices.Equal(have, want) {
					t.Fatalf("%s:%d: %s\nhave %s\nwant %s", file, at+1, lines[at], strings.Join(have, "\n     "), strings.Join(want, "\n     "))
				}
			}
			if err := end(); err != nil {
				t.Fatalf("at the end of %s: %v", file, err)
			}
			if rewrite {
				if err := os.WriteFile(file, []byte(strings.TrimRight(strings.Join(rewritten, "\n"), "\n")+"\n"), 0o666); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
