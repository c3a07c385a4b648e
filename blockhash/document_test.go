package blockhash

import (
	"fmt"
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/doctest"
)

func TestHashesOfTheDocument(t *testing.T) {
	doc := doctest.Fields(t, doctest.Wire, "hash-examples")
	block := make([]uint32, 16)
	for i := range block {
		block[i] = uint32(i)
	}
	local := LocalHash(block, 0, nil)
	for key, code := range map[string]uint64{
		"local":                         local,
		"local, LoRA sql":               LocalHash(block, Seed("sql", ""), nil),
		"local, salt s":                 LocalHash(block, Seed("", "s"), nil),
		"local, objects 2 and 1":        LocalHash(block, 0, []uint64{2, 1}),
		"sequence, second of two alike": SequenceHashes(nil, []uint64{local, local})[1],
	} {
		if want := fmt.Sprint(code); doc[key] != want {
			t.Errorf("%s: %s in the document, %s in the code", key, doc[key], want)
		}
	}
}
