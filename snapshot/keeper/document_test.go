package keeper

import (
	"encoding/json"
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/doctest"
)

func TestLeaseOfTheDocument(t *testing.T) {
	var r leaseRecord
	if err := json.Unmarshal(doctest.JSON(t, doctest.Stored, "snapshot-lease"), &r); err != nil {
		t.Fatal(err)
	}
	doctest.SameJSON(t, doctest.Stored, "snapshot-lease", r)
}
