package fleet

import (
	"io"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/route"
)

// Sync connects a space's router with the others.
type Sync func(sp event.Space, r *route.Router) (io.Closer, error)

// Link connects the routers of all spaces with others, those that there are and those
// to come.
func (f *Fleet) Link(s Sync) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sync = s
	for _, m := range f.Models() {
		if m.link != nil {
			continue
		}
		var err error
		if m.link, err = s(m.Space, m.Router); err != nil {
			m.link = nil // an interface that holds nothing is not nil
			return err
		}
	}
	return nil
}
