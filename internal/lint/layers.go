package lint

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// module begins the paths of the module's own packages.
const module = "github.com/kvatlas/kvatlas"

// layer is one row of DESIGN.md's table of packages: a group of packages, and
// the groups that it may import. "." is the package at the root.
type layer struct {
	names   []string
	imports []string
}

// layers reads the table whose last column is headed "may import" from a text in
// Markdown. Its rows stand from the bottom up.
func layers(text string) ([]layer, error) {
	var ls []layer
	inside := false
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		last := strings.TrimSpace(cells[len(cells)-1])
		switch {
		case last == "may import":
			inside = true
		case !strings.HasPrefix(line, "|"):
			inside = false
		case inside && !strings.HasPrefix(last, "---"):
			ls = append(ls, layer{quoted(cells[0]), quoted(last)})
		}
	}
	if len(ls) == 0 {
		return nil, errors.New("no table of packages with a column \"may import\"")
	}
	return ls, nil
}

// quoted returns the words of s that stand in back quotes.
func quoted(s string) (words []string) {
	for i, part := range strings.Split(s, "`") {
		if i%2 == 1 {
			words = append(words, part)
		}
	}
	return words
}

// checkLayers: data flows one way. A package imports its own group and those that
// its row names; a row names only rows below it, and none that it does not need.
func checkLayers(files []*file, ls []layer) (faults []string) {
	group := func(dir string) (string, bool) {
		for d := dir; ; d = path.Dir(d) {
			for _, l := range ls {
				if slices.Contains(l.names, d) {
					return l.names[0], true
				}
			}
			if d == "." || path.Dir(d) == "." {
				return dir, false
			}
		}
	}
	allowed := map[string]map[string]bool{} // by group: what may be imported, and whether it is
	for _, l := range ls {
		row := map[string]bool{}
		for _, im := range l.imports {
			g, known := group(im)
			if _, below := allowed[g]; !known || !below {
				faults = append(faults, fmt.Sprintf("DESIGN.md: %s may import %s, which is not a row below it", l.names[0], im))
			}
			row[g] = false
		}
		allowed[l.names[0]] = row
	}
	unknown := map[string]bool{}
	for _, f := range files {
		if f.isTest() {
			continue
		}
		dir := path.Dir(f.name)
		from, known := group(dir)
		if !known {
			if !unknown[dir] {
				faults = append(faults, dir+": no row of DESIGN.md's table of packages has it")
			}
			unknown[dir] = true
			continue
		}
		for _, im := range f.ast.Imports {
			p, err := strconv.Unquote(im.Path.Value)
			if err != nil || p != module && !strings.HasPrefix(p, module+"/") {
				continue
			}
			to, _ := group(path.Clean(strings.TrimPrefix(strings.TrimPrefix(p, module), "/")))
			if to == from {
				continue
			}
			if _, ok := allowed[from][to]; !ok {
				faults = append(faults, fmt.Sprintf("%s: imports %s, which DESIGN.md's table does not allow to %s", f.at(im.Pos()), to, from))
				continue
			}
			allowed[from][to] = true
		}
	}
	for _, l := range ls {
		for _, im := range l.imports {
			if g, _ := group(im); !allowed[l.names[0]][g] {
				faults = append(faults, fmt.Sprintf("DESIGN.md: %s may import %s, and does not", l.names[0], im))
			}
		}
	}
	return faults
}
