package jinja

import (
	"context"
	"time"
)

// Template is a compiled template. It is safe for concurrent use.
type Template struct {
	prog *program
	tree *templateNode
}

// maxSource bounds a template's length; the longest of real ones have 30 KB.
const maxSource = 1 << 20

// Compile makes a template of its source. The error is a *SyntaxError where the source is
// not Jinja, and an *UnsupportedError where it needs what this package does not do.
func Compile(src string) (*Template, error) {
	if len(src) > maxSource {
		return nil, &LimitError{"more than 1 MiB of source"}
	}
	tree, err := parse(src)
	if err != nil {
		return nil, err
	}
	prog, err := compile(tree)
	if err != nil {
		return nil, err
	}
	return &Template{prog, tree}, nil
}

// Options are what a render goes by.
type Options struct {
	Now    time.Time // what strftime_now tells
	Limits Limits
	// Buf is appended to; the text is returned in it.
	Buf []byte
}

// Render appends the text of the template to opts.Buf. vars gives the variables that come
// from outside: a missing Value for what there is not.
func (t *Template) Render(ctx context.Context, vars func(name string) Value, opts Options) ([]byte, error) {
	p := t.prog
	s := &state{
		ctx: ctx, out: opts.Buf, now: opts.Now, limits: opts.Limits.withDefaults(),
		f: &frame{slots: make([]Value, p.slots)}, vars: make([]Value, len(p.outside)),
	}
	before := len(s.out)
	s.limits.Output += before
	for i, name := range p.outside {
		if s.vars[i] = vars(name); s.vars[i].k == missing {
			s.vars[i] = allGlobals[name]
		}
	}
	p.enter.enter(s)
	if _, err := execAll(s, p.body); err != nil {
		return opts.Buf, err
	}
	return s.out, nil
}

// AppendJSON writes v as Python's json.dumps(v, ensure_ascii=False) does.
func AppendJSON(b []byte, v Value) ([]byte, error) {
	st := plainJSON
	return appendJSON(b, v, &st, 0)
}
