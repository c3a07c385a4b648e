package jinja

import "strings"

// ReadsParts tells whether the template goes through the parts of a message's content, so
// that it must be given contents as lists of parts and not as strings. It is vLLM's rule
// for --chat-template-content-format auto: there is a loop over the content of a variable
// that is itself of a loop over the messages, or over a variable that was set to them.
func (t *Template) ReadsParts() bool {
	var loops []*forNode
	var sets []*assignNode
	walk(t.tree, func(n node) {
		switch n := n.(type) {
		case *forNode:
			loops = append(loops, n)
		case *assignNode:
			sets = append(sets, n)
		}
	})
	// Where a loop or an assignment of interest has several targets the rule gives up, and
	// takes contents for strings.
	lists := map[string]bool{"messages": true}
	for names := []string{"messages"}; len(names) > 0; names = names[1:] {
		for _, s := range sets {
			if !reads(s.val, names[0], "") {
				continue
			}
			target, ok := s.target.(*nameNode)
			if !ok {
				return false
			}
			if !lists[target.name] {
				lists[target.name] = true
				names = append(names, target.name)
			}
		}
	}
	messages := map[string]bool{}
	for _, l := range loops {
		for name := range lists {
			if reads(l.iter, name, "") {
				target, ok := l.target.(*nameNode)
				if !ok {
					return false
				}
				messages[target.name] = true
			}
		}
	}
	for _, l := range loops {
		for name := range messages {
			if reads(l.iter, name, "content") {
				_, ok := l.target.(*nameNode)
				return ok
			}
		}
	}
	return false
}

// reads tells whether n is the variable, or its attribute key, behind filters and slices.
func reads(n node, variable, key string) bool {
	switch x := n.(type) {
	case *filterNode:
		return x.x != nil && reads(x.x, variable, key)
	case *testNode:
		return reads(x.x, variable, key)
	case *itemNode:
		if _, ok := x.key.(*sliceNode); ok {
			return reads(x.x, variable, key)
		}
		c, ok := x.key.(*constNode)
		return key != "" && ok && c.val.k == str && c.val.s == key && isLoad(x.x, variable)
	case *attrNode:
		return key != "" && x.name == key && isLoad(x.x, variable)
	}
	return key == "" && isLoad(n, variable)
}

func isLoad(n node, variable string) bool {
	name, ok := n.(*nameNode)
	return ok && name.ctx == load && name.name == variable
}

// ReadsPartsSGLang is SGLang's rule of the same: the template speaks of media, or has a loop over
// the content of a variable with one of three names.
func (t *Template) ReadsPartsSGLang(source string) bool {
	for _, word := range []string{"image", "audio", "video", "vision"} {
		if strings.Contains(source, word) {
			return true
		}
	}
	found := false
	walk(t.tree, func(n node) {
		if l, ok := n.(*forNode); ok {
			for _, name := range []string{"message", "msg", "m"} {
				found = found || reads(l.iter, name, "content")
			}
		}
	})
	return found
}
