package main

import (
	"fmt"
	"regexp"
	"strings"
)

// section is a part of the document.
type section struct {
	title string
	rows  []row
}

// row is one fault. It has tests, or says why not.
type row struct {
	line           string
	fault, promise string
	tests          []test
	none           string
}

// test names a test of a package below the module.
type test struct{ pkg, name string }

var testName = regexp.MustCompile(`^([a-z0-9/]*):((?:Test|Fuzz)[A-Za-z0-9_]+)$`)

// parseRows reads faults.txt.
func parseRows(text string) (sections []section, err error) {
	seen := make(map[string]bool)
	for n, line := range strings.Split(text, "\n") {
		fail := func(why string) error { return fmt.Errorf("%s:%d: %s", rowsFile, n+1, why) }
		if title, ok := strings.CutPrefix(line, "## "); ok {
			sections = append(sections, section{title: title})
			continue
		}
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		columns := strings.Split(line, "|")
		if len(columns) != 3 || len(sections) == 0 {
			return nil, fail("a row is fault | promise | tests, in a section")
		}
		r := row{line: line, fault: strings.TrimSpace(columns[0]), promise: strings.TrimSpace(columns[1])}
		last := strings.TrimSpace(columns[2])
		if why, ok := strings.CutPrefix(last, "no test: "); ok {
			r.none = why
		} else {
			for _, f := range strings.Fields(last) {
				m := testName.FindStringSubmatch(f)
				if m == nil {
					return nil, fail(fmt.Sprintf("%q is no package:Test", f))
				}
				r.tests = append(r.tests, test{m[1], m[2]})
			}
			if len(r.tests) == 0 {
				return nil, fail(`no tests: name some, or "no test: why"`)
			}
		}
		s := &sections[len(sections)-1]
		if key := s.title + "|" + r.fault; seen[key] {
			return nil, fail("the section has that fault already")
		} else {
			seen[key] = true
		}
		s.rows = append(s.rows, r)
	}
	return sections, nil
}

// cells returns the row's columns of the document but the last.
func (r *row) cells() string {
	tests := "no test: " + r.none
	if len(r.tests) > 0 {
		var names []string
		for _, t := range r.tests {
			names = append(names, fmt.Sprintf("%s `%s`", t.pkg, t.name))
		}
		tests = strings.Join(names, "<br>")
	}
	return fmt.Sprintf("| %s | %s | %s |", r.fault, r.promise, tests)
}

// key tells whose a result is: one of other tests is none of the row's.
func (r *row) key() string { return r.cells() }

const head = `# Faults

What can go wrong, what kvatlas promises then, which tests show it, and how these ended when they last ran. Written by
` + "`make faults`" + `, which runs them, from [faults.txt](../internal/testing/faults/faults.txt); ` + "`make faults RUN=regexp`" + ` runs only the
rows that match. The numbers in the last part are sections of the contract.
`

// document returns the whole document.
func document(sections []section, results map[string]string) string {
	var b strings.Builder
	b.WriteString(head)
	for _, s := range sections {
		fmt.Fprintf(&b, "\n## %s\n\n| fault | promise | test | last result |\n|---|---|---|---|\n", s.title)
		for _, r := range s.rows {
			result := results[r.key()]
			if result == "" && len(r.tests) > 0 {
				result = "not run yet"
			}
			fmt.Fprintf(&b, "%s %s |\n", r.cells(), result)
		}
	}
	return b.String()
}

// lastResults returns the results that a document has, by row.
func lastResults(doc string) map[string]string {
	results := make(map[string]string)
	for line := range strings.Lines(doc) {
		line = strings.TrimSuffix(strings.TrimRight(line, "\n"), "|")
		if at := strings.LastIndexByte(line, '|'); at > 0 && strings.HasPrefix(line, "| ") {
			if result := strings.TrimSpace(line[at+1:]); result != "not run yet" {
				results[line[:at+1]] = result
			}
		}
	}
	return results
}
