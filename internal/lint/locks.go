package lint

import (
	"errors"
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
)

// order is one row of LOCKING.md's table: while held is held, taken is taken.
type order struct{ held, taken string }

// lockName is how LOCKING.md names a mutex: package, type, field.
var lockName = regexp.MustCompile("`([a-z][a-z/]*\\.[A-Za-z]+\\.[a-z]+)`")

// lockOrder reads the table whose second column is headed "taken" from a text in
// Markdown, and every name of a lock in the text.
func lockOrder(text string) (os []order, names []string, err error) {
	inside := false
	for line := range strings.Lines(text) {
		for _, m := range lockName.FindAllStringSubmatch(line, -1) {
			names = append(names, m[1])
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		switch {
		case len(cells) > 1 && strings.TrimSpace(cells[1]) == "taken":
			inside = true
		case !strings.HasPrefix(line, "|"):
			inside = false
		case inside && !strings.HasPrefix(cells[0], "---"):
			held, taken := quoted(cells[0]), quoted(cells[1])
			if len(held) != 1 || len(taken) != 1 {
				return nil, nil, fmt.Errorf("a row without two locks: %s", line)
			}
			os = append(os, order{held[0], taken[0]})
		}
	}
	if len(os) == 0 {
		return nil, nil, errors.New("no table of locks with a column \"taken\"")
	}
	slices.Sort(names)
	return os, slices.Compact(names), nil
}

// checkLocks: each lock that LOCKING.md names is there, and no order leads around.
func checkLocks(files []*file, os []order, names []string) (faults []string) {
	there := map[string]bool{}
	for _, f := range files {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			ts, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if st, ok := ts.Type.(*ast.StructType); ok {
				for _, field := range st.Fields.List {
					for _, name := range field.Names {
						if isLock(field.Type) {
							there[path.Dir(f.name)+"."+ts.Name.Name+"."+name.Name] = true
						}
					}
				}
			}
			return true
		})
	}
	for _, o := range os {
		names = append(names, o.held, o.taken)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if !there[name] {
			faults = append(faults, fmt.Sprintf("LOCKING.md: there is no mutex %s", name))
		}
	}
	next := map[string][]string{}
	for _, o := range os {
		next[o.held] = append(next[o.held], o.taken)
	}
	for _, o := range os {
		reached := []string{o.taken}
		for i := 0; i < len(reached); i++ {
			for _, n := range next[reached[i]] {
				if !slices.Contains(reached, n) {
					reached = append(reached, n)
				}
			}
		}
		if slices.Contains(reached, o.held) {
			faults = append(faults, fmt.Sprintf("LOCKING.md: %s is taken under %s, and that under it", o.taken, o.held))
		}
	}
	return faults
}

// isLock reports whether a field's type is a mutex, or a struct that embeds one.
func isLock(t ast.Expr) bool {
	switch t := t.(type) {
	case *ast.SelectorExpr:
		pkg, ok := t.X.(*ast.Ident)
		return ok && pkg.Name == "sync" && (t.Sel.Name == "Mutex" || t.Sel.Name == "RWMutex")
	case *ast.StructType:
		return slices.ContainsFunc(t.Fields.List, func(f *ast.Field) bool { return len(f.Names) == 0 && isLock(f.Type) })
	}
	return false
}
