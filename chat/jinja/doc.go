// Package jinja renders chat templates: Jinja as Python's jinja2 3.1.6 does, in the
// environment that transformers 5 makes for apply_chat_template (a sandbox in which nothing
// that is passed in can be changed, trim_blocks, lstrip_blocks, loop controls,
// {% generation %}, raise_exception, strftime_now, tojson as json.dumps).
//
// Invariants:
//   - The text is the judge's, byte for byte, and where the judge fails there is an error.
//     What is not done exactly is refused by name: an UnsupportedError, from Compile where
//     the template shows it, else from Render. Then another has to render.
//   - Time and memory of a render are bounded by Limits, those of Compile by the source's
//     length and depth. A hostile template gives an error, never a panic.
//   - Which variable a name means is settled by Jinja's rules (symbols.go), which are not
//     those of the text's order: a loop that reads a name which is set behind it does not
//     see what was passed in under that name.
//   - Values keep what Python keeps: the order of keys, integers apart from floats and of
//     any size, strings as code points, lone surrogates among them.
//
// A template is lexed (lex.go), parsed (parse.go) and compiled to a tree of nodes with
// variables in numbered slots (compile.go); a render walks that tree (exec.go, eval.go) and
// writes into one buffer: sums and concatenations that are printed are never put together,
// and what a macro writes is not copied where it is printed.
//
// Ownership: a Template is immutable and shared; each Render has its state. Values are
// immutable, but for a render's own namespaces.
//
// Rejected: the Go libraries that there are. Of 24 renderings of four real templates,
// gonja v2.9.1 made 17 as jinja2 did and minijinja-go v2.21.0 18: one sorts the keys of
// tojson and escapes <, > and &, the other has no Python methods of strings, and both keep
// dicts in Go maps, which lose the order that models were trained on. Neither can be
// repaired from the outside.
package jinja
