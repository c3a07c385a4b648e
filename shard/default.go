package shard

import "github.com/kvatlas/kvatlas/core"

// defaultIndex makes the index that Config.NewIndex has by default.
func defaultIndex() core.Index { return core.NewRadix(core.Options{}) }
