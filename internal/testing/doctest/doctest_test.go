package doctest

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An example that no test reads would go stale unnoticed, and a name that two
// have would leave one of them unread.
func TestEveryExampleIsRead(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	var tests strings.Builder
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		tests.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{Wire, Stored} {
		seen := map[string]bool{}
		for _, e := range examples(Page(t, page)) {
			if !strings.Contains(tests.String(), `"`+e.name+`"`) {
				t.Errorf("docs/%s: no test reads the example %q", page, e.name)
			}
			if seen[e.name] {
				t.Errorf("docs/%s: two examples are called %q", page, e.name)
			}
			seen[e.name] = true
		}
		if len(seen) == 0 {
			t.Errorf("docs/%s has no examples", page)
		}
	}
}

func TestParseHex(t *testing.T) {
	if b, err := parseHex("4b 56 # 41\n41\n"); err != nil || string(b) != "KVA" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := parseHex("4b5"); err == nil {
		t.Error("half a byte")
	}
}
