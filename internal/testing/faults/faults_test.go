package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../../.."

func rows(t *testing.T) []section {
	t.Helper()
	text, err := os.ReadFile("faults.txt")
	if err != nil {
		t.Fatal(err)
	}
	sections, err := parseRows(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return sections
}

func TestEveryNamedTestExists(t *testing.T) {
	tests := map[string]map[string]bool{} // by package
	for _, s := range rows(t) {
		for _, r := range s.rows {
			for _, named := range r.tests {
				if tests[named.pkg] == nil {
					tests[named.pkg] = testsOf(t, named.pkg)
				}
				if !tests[named.pkg][named.name] {
					t.Errorf("%s: %q: package %q has no %s", s.title, r.fault, named.pkg, named.name)
				}
			}
		}
	}
}

func testsOf(t *testing.T, pkg string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				names[fn.Name.Name] = true
			}
		}
	}
	return names
}

// The document is what the rows and its own results make; `make faults` brings
// it up to date.
func TestTheDocumentHasEveryRow(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join(root, docFile))
	if err != nil {
		t.Fatal(err)
	}
	want := document(rows(t), lastResults(string(doc)))
	if string(doc) == want {
		return
	}
	have := strings.Split(string(doc), "\n")
	for i, line := range strings.Split(want, "\n") {
		if i >= len(have) || have[i] != line {
			t.Fatalf("%s, line %d: have %q, want %q; run make faults RUN=… for the rows that are new", docFile, i+1, append(have, "")[min(i, len(have))], line)
		}
	}
	t.Fatalf("%s has more than its rows", docFile)
}

// Results are kept by row; those of a row that names other tests now are not.
func TestResultsAreKeptByRow(t *testing.T) {
	parse := func(text string) []section {
		s, err := parseRows(text)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	before := parse("## S\na | p | x:TestA\nb | p | x:TestA x:TestB\nc | p | no test: far away\n")
	results := map[string]string{}
	for _, r := range before[0].rows[:2] {
		results[r.key()] = r.result(map[test]string{{"x", "TestA"}: resultPassed, {"x", "TestB"}: resultSkipped})
	}
	doc := document(before, results)
	for _, line := range []string{"| a | p | x `TestA` | passed |", "| b | p | x `TestA`<br>x `TestB` | skipped |", "| c | p | no test: far away |  |"} {
		if !strings.Contains(doc, line+"\n") {
			t.Errorf("no line %q in\n%s", line, doc)
		}
	}
	after := document(parse("## S\na | p | x:TestA\nb | p | x:TestB\n"), lastResults(doc))
	if !strings.Contains(after, "x `TestA` | passed |\n") || !strings.Contains(after, "x `TestB` | not run yet |\n") {
		t.Errorf("kept:\n%s", after)
	}
	if r := before[0].rows[0]; r.result(nil) != resultFailed {
		t.Error("a test that did not end has not failed")
	}
}

func TestMistakesInRowsAreRefused(t *testing.T) {
	for _, text := range []string{
		"a | b | x:TestA", "## S\na | b", "## S\na | b |", "## S\na | b | TestA", "## S\na | b | x:Other", "## S\na | b | x:TestA\na | c | x:TestB",
	} {
		if s, err := parseRows(text); err == nil {
			t.Errorf("%q is taken as %+v", text, s)
		}
	}
}
