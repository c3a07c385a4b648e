package ingest

import (
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// Into returns a Config.Index that opens the spaces of the set.
func Into(set *shard.Set) func(event.Space) (Applier, error) {
	return func(id event.Space) (Applier, error) {
		sp, err := set.Open(id)
		if err != nil {
			return nil, err // not sp: a nil *Space is no nil Applier
		}
		return sp, nil
	}
}
