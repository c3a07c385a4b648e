package fleet

import (
	"slices"

	"github.com/kvatlas/kvatlas/internal/router/selection"
)

// way is how a name may be one of a model's.
type way struct {
	has     func(m *Model, name string) bool
	adapter bool // it is that of a LoRA adapter of the model
}

var (
	// ways are all of them, first that which counts where several are.
	ways = []way{
		{has: func(m *Model, name string) bool { return m.Space.Model == name }},
		{has: func(m *Model, name string) bool { return m.served.has(name) }},
		{has: func(m *Model, name string) bool { return m.loras.has(name) }, adapter: true},
	}
	// settled is that of an adapter of Config.Loras, by its model's name.
	settled = []way{{ways[0].has, true}}
)

// Alias returns the name that a request means: that of which its own is an alias, or
// that.
func (f *Fleet) Alias(name string) string {
	if of, ok := f.cfg.Aliases[name]; ok {
		return of
	}
	return name
}

// meaning returns what engines call what a request means by a name, and by which name, and in which ways, models
// are asked for it.
func (f *Fleet) meaning(name string) (called, of string, in []way) {
	called = f.Alias(name)
	if base, ok := f.cfg.Loras[called]; ok {
		return called, base, settled
	}
	return called, called, ways
}

// Named reports whether a name that a request may give is one of the model's, or of an adapter of it.
func (f *Fleet) Named(m *Model, name string) bool {
	_, of, in := f.meaning(name)
	return slices.ContainsFunc(in, func(w way) bool { return w.has(m, of) })
}

// Meant returns what Lookup chooses from: all models that a request may mean by a name, sorted by space, for each
// way in which a name may be one of a model's, first that which counts where several are.
func (f *Fleet) Meant(name string) (all [][]selection.Named) {
	name, of, in := f.meaning(name)
	for _, w := range in {
		var list []selection.Named
		for _, m := range f.Models() {
			switch {
			case !w.has(m, of):
			case w.adapter:
				list = append(list, selection.Named{Model: &m.Model, Lora: name, Workers: m.LoraWorkers(name)})
			default:
				list = append(list, selection.Named{Model: &m.Model, Workers: m.NameWorkers(name)})
			}
		}
		if list != nil {
			all = append(all, list)
		}
	}
	return all
}

// ModelsOf returns the names, without repetitions, by which the models are registered that a request may mean by one, in the
// way that counts first; the name itself if there are none.
func (f *Fleet) ModelsOf(name string) []string {
	meant := f.Meant(name)
	if len(meant) == 0 {
		return []string{f.Alias(name)}
	}
	models := []string{}
	for _, m := range meant[0] {
		models = append(models, m.Model.Model)
	}
	return slices.Compact(models) // they are sorted
}
