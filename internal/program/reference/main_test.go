package main

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/testing/progtest"
)

var (
	root = filepath.Join("..", "..", "..")
	bin  = &progtest.Programs{Root: root, Packages: []string{"./cmd/..."}}
)

// once is generate's result, for all tests.
var once = sync.OnceValues(func() (*generated, error) {
	dir, err := bin.Dir()
	if err != nil {
		return nil, err
	}
	return generate(context.Background(), dir)
})

// listed returns what each program lists, and where they are.
func listed(t *testing.T) (lists []conf.List, dir string) {
	t.Helper()
	dir, err := bin.Dir()
	if err != nil {
		t.Fatal(err)
	}
	if lists, err = ask(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	return lists, dir
}

func TestMain(m *testing.M) {
	code := m.Run()
	bin.Close()
	os.Exit(code)
}

func TestTheReferenceIsUpToDate(t *testing.T) {
	g, err := once()
	if err != nil {
		t.Fatal(err)
	}
	files := g.files
	for name, want := range files {
		have, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if string(have) != want {
			t.Errorf("%s is not what the programs say: run `make reference`\n%s", name, firstDifference(string(have), want))
		}
	}
	for _, p := range programs {
		if !strings.Contains(files[docFile], "\n## "+p+"\n") || !strings.Contains(files[knownFile], p+": config ") {
			t.Errorf("nothing of %s", p)
		}
	}
	if !strings.Contains(files[docFile], "Usage of kvbench replay:") {
		t.Error("nothing of kvbench")
	}
	for _, want := range []string{"## kvatlas_ingest: kvindexer, kvrouter\n", "## kvatlas_publish: kvpublisher\n", "| `kvatlas_ready` | gauge |"} {
		if !strings.Contains(files[metricsFile], want) {
			t.Errorf("no %q in %s", want, metricsFile)
		}
	}
	if strings.Contains(files[docFile], "/nonexistent") {
		t.Error("a default depends on the machine")
	}
	for line := range strings.Lines(files[knownFile]) {
		program, names, _ := strings.Cut(line, ":")
		for name := range strings.FieldsSeq(names) {
			for _, p := range programs { // else its shared variable would look like that program's own
				if strings.HasPrefix(name, strings.TrimPrefix(p, "kv")+"-") {
					t.Errorf("%s: the setting --%s begins like the variables of %s alone", program, name, p)
				}
			}
		}
	}
}

func firstDifference(have, want string) string {
	a, b := strings.Split(have, "\n"), strings.Split(want, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return "- " + a[i] + "\n+ " + b[i]
		}
	}
	return "one is longer than the other"
}

// The documents name only settings that there are. Two pages name those of others.
func TestTheDocumentsNameSettingsThatThereAre(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(pages) < 10 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, name := range []string{"README.md", "DESIGN.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/README.md"} {
		pages = append(pages, filepath.Join(root, name))
	}
	reference, err := os.ReadFile(filepath.Join(root, docFile))
	if err != nil {
		t.Fatal(err)
	}
	flag := regexp.MustCompile("`--([a-z][a-z0-9-]*)")
	n := 0
	for _, page := range pages {
		if base := filepath.Base(page); base == "from-dynamo.md" || base == "engines.md" {
			continue
		}
		text, err := os.ReadFile(page) //nolint:gosec // our own documents
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range flag.FindAllStringSubmatch(string(text), -1) {
			n++
			if !strings.Contains(string(reference), "| `--"+m[1]+"` |") && !strings.Contains(string(reference), "\n  -"+m[1]) {
				t.Errorf("%s: there is no setting --%s", filepath.Base(page), m[1])
			}
		}
	}
	if n < 100 {
		t.Errorf("only %d settings are named", n)
	}
}
