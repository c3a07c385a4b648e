package doctest

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The documents with examples, below docs.
const (
	Wire   = "wire-format.md"
	Stored = "stored-format.md"
)

// Page returns the text of a document.
func Page(t testing.TB, page string) string {
	t.Helper()
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", page)) //nolint:gosec // a test reads what it names
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Root returns the module's directory, at or above the present one.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("where the test runs: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", fmt.Errorf("no go.mod at or above the test's directory")
		}
		dir = up
	}
}

var fenced = regexp.MustCompile("(?ms)^```([a-z]+) ([a-z-]+)\n(.*?)^```$")

// example is one named block.
type example struct{ language, name, text string }

func examples(page string) []example {
	var list []example
	for _, m := range fenced.FindAllStringSubmatch(page, -1) {
		list = append(list, example{m[1], m[2], m[3]})
	}
	return list
}

func find(t testing.TB, page, language, name string) string {
	t.Helper()
	for _, e := range examples(Page(t, page)) {
		if e.language == language && e.name == name {
			return e.text
		}
	}
	t.Fatalf("docs/%s has no %s example %q", page, language, name)
	return ""
}

// Hex returns the bytes of an example.
func Hex(t testing.TB, page, name string) []byte {
	t.Helper()
	b, err := parseHex(find(t, page, "hex", name))
	if err != nil {
		t.Fatalf("docs/%s, example %s: %v", page, name, err)
	}
	return b
}

func parseHex(text string) ([]byte, error) {
	var digits strings.Builder
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		for _, f := range strings.Fields(line) {
			digits.WriteString(f)
		}
	}
	return hex.DecodeString(digits.String())
}

// JSON returns an example without white space between its tokens.
func JSON(t testing.TB, page, name string) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(find(t, page, "json", name))); err != nil {
		t.Fatalf("docs/%s, example %s: %v", page, name, err)
	}
	return b.Bytes()
}

// Fields returns an example of lines, each a key and a value with two spaces or
// more between them.
func Fields(t testing.TB, page, name string) map[string]string {
	t.Helper()
	fields := make(map[string]string)
	for line := range strings.Lines(find(t, page, "text", name)) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if !ok {
			t.Fatalf("docs/%s, example %s: line %q has no value", page, name, line)
		}
		fields[key] = strings.TrimSpace(value)
	}
	return fields
}

// Same fails the test unless the code's bytes are those of the document.
func Same(t testing.TB, page, name string, code []byte) {
	t.Helper()
	if doc := Hex(t, page, name); !bytes.Equal(code, doc) {
		t.Errorf("docs/%s, example %s:\n%x\nthe code encodes\n%x", page, name, doc, code)
	}
}

// SameJSON fails the test unless the value is encoded as the document's text is
// without white space.
func SameJSON(t testing.TB, page, name string, v any) {
	t.Helper()
	code, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if doc := JSON(t, page, name); !bytes.Equal(code, doc) {
		t.Errorf("docs/%s, example %s:\n%s\nthe code encodes\n%s", page, name, doc, code)
	}
}
