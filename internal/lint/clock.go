package lint

import (
	"fmt"
	"go/ast"
	"go/token"
)

// byTheClock are the files whose tests may compare times of the day, and why no slow machine fails them.
var byTheClock = map[string]string{
	"ingest/sim_test.go": "its histories are run in testing/synctest bubbles, by functions of their own",
}

// checkClock: a test does not fail for how long something took by the clock, which the machine
// decides: `if took > limit`, where took is from time.Since or Sub. That something took no less
// than it must is no such test, as nothing makes it shorter; neither is one in a testing/synctest bubble.
func checkClock(f *file) (faults []string) {
	if !f.isTest() || byTheClock[f.name] != "" {
		return nil
	}
	names := imports(f.ast)
	isFrom := func(n ast.Node, pkg, name string) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok || sel.Sel.Name != name {
			return false
		}
		x, ok := sel.X.(*ast.Ident)
		return ok && names[x.Name] == pkg
	}
	for _, d := range f.ast.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		c := clock{isSince: func(n ast.Node) bool { return isFrom(n, "time", "Since") }, isNow: func(n ast.Node) bool { return isFrom(n, "time", "Now") }, known: map[string]bool{}, times: map[string]bool{}}
		judge := func(cond ast.Expr) {
			for _, at := range c.over(cond) {
				faults = append(faults, fmt.Sprintf("%s: a test that fails by the clock; count, use testing/synctest, or wait for an end (waittest)", f.at(at)))
			}
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				return !isFrom(n.Fun, "testing/synctest", "Test")
			case *ast.AssignStmt:
				c.assign(n)
			case *ast.IfStmt:
				if init, ok := n.Init.(*ast.AssignStmt); ok {
					c.assign(init)
				}
				judge(n.Cond)
			case *ast.CaseClause:
				for _, e := range n.List {
					judge(e)
				}
			}
			return true
		})
	}
	return faults
}

// clock knows a function's variables that have a time of the day, or how long something took.
type clock struct {
	isSince, isNow func(ast.Node) bool
	known, times   map[string]bool
}

func (c *clock) assign(n *ast.AssignStmt) {
	if len(n.Lhs) != len(n.Rhs) {
		return
	}
	for i, right := range n.Rhs {
		left, ok := n.Lhs[i].(*ast.Ident)
		if !ok {
			continue
		}
		if call, ok := right.(*ast.CallExpr); ok && c.isNow(call.Fun) {
			c.times[left.Name] = true
		}
		if c.took(right) {
			c.known[left.Name] = true
		}
	}
}

// took reports whether an expression is how long something took.
func (c *clock) took(e ast.Expr) (is bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.Ident:
			is = is || c.known[n.Name]
		case *ast.CallExpr:
			sel, ok := n.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, isName := sel.X.(*ast.Ident)
			is = is || c.isSince(sel) || sel.Sel.Name == "Sub" && isName && c.times[x.Name]
		}
		return true
	})
	return is
}

// over returns where a condition is that something took longer.
func (c *clock) over(cond ast.Expr) (all []token.Pos) {
	ast.Inspect(cond, func(n ast.Node) bool {
		b, ok := n.(*ast.BinaryExpr)
		if !ok {
			return true
		}
		switch b.Op {
		case token.GTR, token.GEQ:
			if c.took(b.X) {
				all = append(all, b.OpPos)
			}
		case token.LSS, token.LEQ:
			if c.took(b.Y) {
				all = append(all, b.OpPos)
			}
		}
		return true
	})
	return all
}
