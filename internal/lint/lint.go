package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// maxLines is the length beyond which a file that is not a test is split.
const maxLines = 500

// file is one parsed Go file of the module.
type file struct {
	name  string // path below the module's root, with slashes
	lines int
	fset  *token.FileSet
	ast   *ast.File
}

func (f *file) isTest() bool { return strings.HasSuffix(f.name, "_test.go") }

// isLibrary leaves out commands, and what is made for tests: files and packages
// named so.
func (f *file) isLibrary() bool {
	return f.ast.Name.Name != "main" && !strings.HasSuffix(f.ast.Name.Name, "test") && !f.isTest()
}

func (f *file) at(p token.Pos) string {
	return fmt.Sprintf("%s:%d", f.name, f.fset.Position(p).Line)
}

// parse reads one file from source.
func parse(name string, src []byte) (*file, error) {
	fset := token.NewFileSet()
	a, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", name, err)
	}
	return &file{name: name, lines: fset.File(a.Pos()).LineCount(), fset: fset, ast: a}, nil
}

// load parses every Go file below root, except hidden folders, testdata and
// modules of their own.
func load(root fs.FS) ([]*file, error) {
	var files []*file
	err := fs.WalkDir(root, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if p == "." {
				return nil
			}
			if _, err := fs.Stat(root, path.Join(p, "go.mod")); err == nil {
				return fs.SkipDir
			}
			if strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin" {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(p) != ".go" {
			return nil
		}
		src, err := fs.ReadFile(root, p)
		if err != nil {
			return err
		}
		f, err := parse(p, src)
		if err != nil {
			return err
		}
		files = append(files, f)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the module's files: %w", err)
	}
	return files, nil
}

// banned lists the calls that library packages leave to their callers, by
// import path and name prefix.
var banned = map[string][]string{
	"os":  {"Exit"},
	"log": {"Fatal", "Panic", "Print"},
	"fmt": {"Print"},
}

// checkLibrary: a library returns errors; only a command stops the process or
// writes to its terminal.
func checkLibrary(f *file) (faults []string) {
	if !f.isLibrary() {
		return nil
	}
	names := imports(f.ast)
	ast.Inspect(f.ast, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		switch fun := call.Fun.(type) {
		case *ast.Ident:
			if fun.Name == "panic" || fun.Name == "print" || fun.Name == "println" {
				faults = append(faults, fmt.Sprintf("%s: %s in a library package; return an error", f.at(call.Pos()), fun.Name))
			}
		case *ast.SelectorExpr:
			if pkg, ok := fun.X.(*ast.Ident); ok {
				for _, prefix := range banned[names[pkg.Name]] {
					if strings.HasPrefix(fun.Sel.Name, prefix) {
						faults = append(faults, fmt.Sprintf("%s: %s.%s in a library package; leave it to the command", f.at(call.Pos()), pkg.Name, fun.Sel.Name))
					}
				}
			}
		}
		return true
	})
	return faults
}

// checkLength: a file has one subject and is split before it gets long.
func checkLength(f *file) []string {
	if f.isTest() || f.lines <= maxLines {
		return nil
	}
	return []string{fmt.Sprintf("%s: %d lines, at most %d; split it by subject", f.name, f.lines, maxLines)}
}

// checkSleep: a test waits for a condition with a deadline, or runs in a
// testing/synctest bubble, where sleeping is exact and free.
func checkSleep(f *file) (faults []string) {
	if !f.isTest() {
		return nil
	}
	names := imports(f.ast)
	ast.Inspect(f.ast, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := sel.X.(*ast.Ident)
		if !ok {
			return true
		}
		if names[pkg.Name] == "testing/synctest" && sel.Sel.Name == "Test" {
			return false
		}
		if names[pkg.Name] == "time" && sel.Sel.Name == "Sleep" {
			faults = append(faults, fmt.Sprintf("%s: time.Sleep in a test; wait for a condition, or use testing/synctest", f.at(call.Pos())))
		}
		return true
	})
	return faults
}

// wholly are the folders that make test also runs whole without the race detector (Makefile, WHOLLY).
var wholly = []string{"core/", "shard/", "bench/lab/", "internal/lint/"}

// checkUnraced: make test finds by its text the test in which one of these is called, and runs that
// without the race detector too; what a helper function calls would run in neither part.
func checkUnraced(f *file) (faults []string) {
	if !f.isTest() || slices.ContainsFunc(wholly, func(p string) bool { return strings.HasPrefix(f.name, p) }) {
		return nil
	}
	names := imports(f.ast)
	for _, d := range f.ast.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") {
			continue
		}
		ast.Inspect(d, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if pkg, ok := sel.X.(*ast.Ident); ok {
				switch path.Base(names[pkg.Name]) + "." + sel.Sel.Name {
				case "racetest.Without", "racetest.Few", "coretest.Seeds":
					faults = append(faults, fmt.Sprintf("%s: %s.%s outside of a test's own function, where make test does not find it", f.at(sel.Pos()), pkg.Name, sel.Sel.Name))
				}
			}
			return true
		})
	}
	return faults
}

// checkDocs: every package says what it is, in one place.
func checkDocs(files []*file) (faults []string) {
	docs := map[string]int{}
	for _, f := range files {
		if f.isTest() {
			continue
		}
		dir := path.Dir(f.name)
		docs[dir] += 0
		if f.ast.Doc != nil {
			docs[dir]++
		}
	}
	for _, f := range files { // in the files' order, once a package
		dir := path.Dir(f.name)
		n, seen := docs[dir]
		if !seen {
			continue
		}
		delete(docs, dir)
		switch {
		case n == 0:
			faults = append(faults, dir+": no package comment; write a doc.go")
		case n > 1:
			faults = append(faults, fmt.Sprintf("%s: %d package comments; keep the one in doc.go", dir, n))
		}
	}
	return faults
}

// imports maps the names by which a file uses packages to their paths.
func imports(a *ast.File) map[string]string {
	names := make(map[string]string, len(a.Imports))
	for _, im := range a.Imports {
		p, err := strconv.Unquote(im.Path.Value)
		if err != nil {
			continue // the parser has accepted it, so this does not happen
		}
		name := path.Base(p)
		if im.Name != nil {
			name = im.Name.Name
		}
		names[name] = p
	}
	return names
}

// link is a link of a Markdown text: a path, an anchor, or both.
var link = regexp.MustCompile(`\]\(([^)#:]*)(?:#([^):]*))?\)`)

// checkLinks: what a document points to is there, sections too.
func checkLinks(root fs.FS) (faults []string, err error) {
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin"):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".md":
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return fmt.Errorf("read a document: %w", err)
		}
		for _, m := range link.FindAllSubmatch(text, -1) {
			target := name
			if len(m[1]) > 0 {
				target = path.Join(path.Dir(name), string(m[1]))
			}
			if _, err := fs.Stat(root, target); err != nil {
				faults = append(faults, fmt.Sprintf("%s: links to %s, which is not there", name, target))
				continue
			}
			if anchor := string(m[2]); anchor != "" && path.Ext(target) == ".md" {
				there, err := fs.ReadFile(root, target)
				if err != nil {
					return fmt.Errorf("read a document: %w", err)
				}
				if !slices.Contains(anchors(string(there)), anchor) {
					faults = append(faults, fmt.Sprintf("%s: links to #%s of %s, which has no such section", name, anchor, target))
				}
			}
		}
		return nil
	})
	return faults, err
}

var (
	heading   = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	anchorCut = regexp.MustCompile(`[^a-z0-9 _-]`)
)

// anchors returns those of a document's sections, as GitHub makes them.
func anchors(text string) (all []string) {
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		all = append(all, strings.ReplaceAll(anchorCut.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return all
}
