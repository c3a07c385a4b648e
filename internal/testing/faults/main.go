// Command faults runs the tests that faults.txt names and writes docs/faults.md:
// what can go wrong, what holds then, which tests show it, and how they ended.
//
//	go run ./internal/testing/faults [-run REGEXP] [flags of go test]
//
// With -run only rows that match are run; the others keep their last result.
//
// Invariants: the document has the rows of faults.txt and no other, and each
// test that they name exists (TestTheDocumentHasEveryRow, TestEveryNamedTestExists).
//
// Ownership: it writes that one file.
package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"time"
)

func main() {
	run := flag.String("run", ".", "regular expression of the rows whose tests are run")
	flag.Parse()
	if err := update(*run, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

const (
	rowsFile = "internal/testing/faults/faults.txt"
	docFile  = "docs/faults.md"
)

// update runs the rows that match and writes the document. It is an error if one
// of their tests fails.
func update(match string, flags []string) error {
	re, err := regexp.Compile(match)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	text, err := os.ReadFile(rowsFile)
	if err != nil {
		return fmt.Errorf("run it in the module's directory: %w", err)
	}
	sections, err := parseRows(string(text))
	if err != nil {
		return err
	}
	old, err := os.ReadFile(docFile)
	if err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("the document: %w", err)
	}
	results := lastResults(string(old))
	var chosen []row
	for _, s := range sections {
		for _, r := range s.rows {
			if re.MatchString(r.line) && len(r.tests) > 0 {
				chosen = append(chosen, r)
			}
		}
	}
	ended, err := runTests(chosen, flags)
	if err != nil {
		return err
	}
	today := time.Now().UTC().Format(time.DateOnly)
	failed := 0
	for _, r := range chosen {
		result := r.result(ended)
		if result == resultFailed {
			failed++
		}
		results[r.key()] = result + " " + today
	}
	if err := os.WriteFile(docFile, []byte(document(sections, results)), 0o644); err != nil { //nolint:gosec // a document
		return fmt.Errorf("the document: %w", err)
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d rows failed: see %s", failed, len(chosen), docFile)
	}
	return nil
}
