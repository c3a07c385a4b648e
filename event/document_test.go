package event

import (
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/doctest"
)

// example is the batch of docs/wire-format.md.
func example() *Batch {
	return &Batch{
		Space: Space{Model: "m", BlockSize: 16, Group: "g"}, Worker: 7, Incarnation: 9,
		Events: []Event{
			{Kind: Stored, Tier: HostPinned, HasParent: true, DPRank: 1, ID: 5, Parent: 0x10, Engine: []uint64{0x11}, Local: []uint64{0x22}},
			{Kind: Removed, DPRank: 1, ID: 6, Engine: []uint64{0x10}},
			{Kind: Cleared, AllTiers: true, DPRank: 1, ID: 7},
		},
	}
}

func TestNativeExamplesOfTheDocument(t *testing.T) {
	beat := example()
	beat.Events, beat.Last = nil, []Position{{DPRank: 1, ID: 7}, {DPRank: 2, ID: 300, Incomplete: true}}
	for name, b := range map[string]*Batch{"native-batch": example(), "native-heartbeat": beat} {
		encode := AppendBatch
		if b.Last != nil {
			encode = AppendHeartbeat
		}
		doctest.Same(t, doctest.Wire, name, encode(nil, b))
		got, err := new(Decoder).Decode(doctest.Hex(t, doctest.Wire, name))
		if err != nil || !reflect.DeepEqual(got, b) {
			t.Errorf("%s: decoded %+v, %v", name, got, err)
		}
	}
}

func TestRouterEventExamplesOfTheDocument(t *testing.T) {
	b := example()
	want := Batch{Worker: 7, Events: b.Events[:1]}
	got, err := Decode(doctest.JSON(t, doctest.Wire, "router-event"))
	if err != nil || len(got) != 1 || !reflect.DeepEqual(got[0], want) {
		t.Errorf("as JSON: %+v, %v", got, err)
	}
	want.Published = 1_000_000
	got, err = Decode(doctest.Hex(t, doctest.Wire, "router-event-envelope"))
	if err != nil || len(got) != 1 || !reflect.DeepEqual(got[0], want) {
		t.Errorf("in an envelope: %+v, %v", got, err)
	}
}

// Every spelling of a tier stands in the document, and the document has no other.
func TestTiersOfTheDocument(t *testing.T) {
	page := doctest.Page(t, doctest.Wire)
	rows := regexp.MustCompile("(?m)^\\| [a-z' ]+ \\| ([0-3]) \\| `([a-z_]+)` \\| (.*) \\|$").FindAllStringSubmatch(page, -1)
	if len(rows) != NumTiers {
		t.Fatalf("%d tiers in the document", len(rows))
	}
	spellings := 0
	for i, row := range rows {
		written, others := row[2], strings.Split(strings.ReplaceAll(row[3], "`", ""), ", ")
		if row[1] != strconv.Itoa(i) || written != Tier(i).String() {
			t.Errorf("tier %d is %s in the document", i, written)
		}
		for _, name := range append(others, written) {
			spellings++
			for _, name := range []string{strings.ToUpper(name), strings.ToLower(name)} {
				if tier, ok := ParseTier([]byte(name)); !ok || tier != Tier(i) {
					t.Errorf("%s is read as %v", name, tier)
				}
			}
		}
	}
	src, err := os.ReadFile("names.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(regexp.MustCompile(`"[A-Z_0-9]+"`).FindAll(src, -1)); n != spellings {
		t.Errorf("the code reads %d spellings, the document has %d", n, spellings)
	}
}
