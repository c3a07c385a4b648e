package lint

import (
	"slices"
	"strings"
	"testing"
)

// TestLayers shows that the rule of who may import whom finds each way to break it.
func TestLayers(t *testing.T) {
	const table = `
| packages | what | may import |
|---|---|---|
| ` + "`low`" + ` | the lowest | |
| ` + "`mid`" + ` | between | ` + "`low`" + ` |
| ` + "`top` `more`" + ` | the programs | ` + "`mid`" + ` |

| another | table |
|---|---|
| ` + "`x`" + ` | y |
`
	good := map[string]string{
		"low/a.go":      "package low",
		"mid/sub/a.go":  "package sub\nimport _ \"" + module + "/low\"",
		"mid/a.go":      "package mid\nimport _ \"" + module + "/mid/sub\"",
		"top/a.go":      "package top\nimport _ \"" + module + "/mid/sub\"",
		"more/a.go":     "package more\nimport _ \"fmt\"",
		"low/a_test.go": "package low\nimport _ \"" + module + "/top\"", // tests go where they please
	}
	cases := []struct {
		name, table, file, src string
		want                   string // part of the only fault; empty for none
	}{
		{"as it should be", table, "", "", ""},
		{"back", table, "low/b.go", "package low\nimport _ \"" + module + "/mid\"", "low/b.go:2: imports mid"},
		{"over a floor", table, "more/b.go", "package more\nimport _ \"" + module + "/low\"", "does not allow to top"},
		{"no row", table, "other/b.go", "package other", "other: no row"},
		{"not needed", strings.Replace(table, "`mid` |\n\n", "`mid` `low` |\n\n", 1), "", "", "top may import low, and does not"},
		{"a row above", strings.Replace(table, "| the lowest | |", "| the lowest | `mid` |", 1), "low/b.go", "package low\nimport _ \"" + module + "/mid\"", "low may import mid, which is not a row below"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var names []string
			for name := range good {
				names = append(names, name)
			}
			slices.Sort(names)
			var files []*file
			add := func(name, src string) {
				f, err := parse(name, []byte(src))
				if err != nil {
					t.Fatal(err)
				}
				files = append(files, f)
			}
			for _, name := range names {
				add(name, good[name])
			}
			if c.file != "" {
				add(c.file, c.src)
			}
			ls, err := layers(c.table)
			if err != nil {
				t.Fatal(err)
			}
			faults := checkLayers(files, ls)
			if c.want == "" && len(faults) > 0 || c.want != "" && (len(faults) != 1 || !strings.Contains(faults[0], c.want)) {
				t.Errorf("faults %q, want one with %q", faults, c.want)
			}
		})
	}
	if _, err := layers("| a | table |\n|---|---|\n"); err == nil {
		t.Error("a document without the table is taken")
	}
}
