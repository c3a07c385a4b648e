package shard

import (
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// mappedIndex is an index that says how much it has mapped.
type mappedIndex struct {
	*core.Oracle
	bytes int64
}

func (m mappedIndex) MappedBytes() int64 { return m.bytes }

func TestMappedBytesAddUp(t *testing.T) {
	made := int64(0)
	s := New(Config{Shards: 3, NewIndex: func() core.Index {
		made++
		if made == 2 {
			return core.NewOracle() // one that maps nothing
		}
		return mappedIndex{core.NewOracle(), made}
	}})
	t.Cleanup(s.Close)
	for _, model := range []string{"a", "b"} {
		if _, err := s.Open(event.Space{Model: model, BlockSize: 16}); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := s.MappedBytes(), int64(1+3+4+5+6); got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
}
