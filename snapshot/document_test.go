package snapshot

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/internal/testing/doctest"
)

func TestExamplesOfTheDocument(t *testing.T) {
	m, err := decodeMeta(doctest.JSON(t, doctest.Stored, "snapshot-description"))
	if err != nil {
		t.Fatal(err)
	}
	doctest.SameJSON(t, doctest.Stored, "snapshot-description", m)
	var f Footer
	if err := json.Unmarshal(doctest.JSON(t, doctest.Stored, "snapshot-footer"), &f); err != nil {
		t.Fatal(err)
	}
	doctest.SameJSON(t, doctest.Stored, "snapshot-footer", f)

	run := core.Piece{
		Number: 1, Local: []uint64{1, 2, 3}, Engine: []uint64{11, 12, 13}, Held: []core.PieceHeld{{Holder: 0, Blocks: 2}},
		Exceptions: []core.PieceException{{Holder: 2, Hashes: []core.PieceHash{{Pos: 2, Shared: true, Copies: [4]uint32{2, 1}}}}},
	}
	var c chunk
	c.appendRun(&run, 0)
	doctest.Same(t, doctest.Stored, "snapshot-run", append(append([]byte(nil), c.meta...), c.words...))
	doc := doctest.Hex(t, doctest.Stored, "snapshot-run")
	c.meta, c.words = doc[:len(doc)-48], doc[len(doc)-48:]
	if got, err := new(decoder).decodeRuns(&c, []core.Holder{0, 1, 2}); err != nil || len(got) != 1 || !reflect.DeepEqual(got[0], run) {
		t.Errorf("decoded %+v, %v", got, err)
	}
}
