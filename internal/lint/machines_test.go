package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// listed is what `go list` says of a package.
type listed struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string
	Standard        bool
}

// The programs are also for machines whose int has 32 bits: a constant that does not fit
// one, in them or in tests, is found here, by types alone, which takes seconds; to build them takes minutes.
// linux/arm has the same files and sizes, of ours.
func TestTypesFitMachinesOf32Bits(t *testing.T) {
	racetest.Without(t, "one goroutine")
	cmd := exec.Command("go", "list", "-deps", "-test", "-json=ImportPath,Dir,GoFiles,ImportMap,Standard", "../../...")
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=386", "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	checked, fset := map[string]*types.Package{"unsafe": types.Unsafe}, token.NewFileSet()
	ours := 0
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if p.ImportPath == "unsafe" || strings.HasSuffix(p.ImportPath, ".test") {
			continue
		}
		own := strings.HasPrefix(p.ImportPath, "github.com/kvatlas/")
		if own {
			ours++
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		config := types.Config{
			Sizes: types.SizesFor("gc", "386"), IgnoreFuncBodies: !own, FakeImportC: true,
			Importer: importer(func(path string) *types.Package {
				if real, ok := p.ImportMap[path]; ok {
					path = real
				}
				return checked[path]
			}),
			Error: func(err error) {
				if own {
					t.Error(err)
				}
			},
		}
		checked[p.ImportPath], _ = config.Check(p.ImportPath, fset, files, nil) // Error has told
	}
	if ours < 50 {
		t.Errorf("%d packages of ours were checked", ours)
	}
}

// importer is a types.Importer of what was checked already: `go list -deps` names a
// package after those that it imports.
type importer func(path string) *types.Package

func (f importer) Import(path string) (*types.Package, error) {
	if p := f(path); p != nil {
		return p, nil
	}
	return nil, errors.New("it is not listed")
}
