package console

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/edge"
)

func askKnown(path, tag string) *edge.Ask { return &edge.Ask{Method: "GET", Path: path, Known: tag} }

func (f *fixture) tree(args string) (a prefixes) {
	f.t.Helper()
	reply := f.get("api/prefixes?" + args)
	if reply.Status != 200 {
		f.t.Fatalf("%s: %d %s", args, reply.Status, reply.Body)
	}
	if err := json.Unmarshal(reply.Body, &a); err != nil {
		f.t.Fatal(err)
	}
	return a
}

// The tree has each fork with who holds what follows, and how many sampled prompts came by.
func TestTheTreeOfPrefixes(t *testing.T) {
	f := newFixture(t, nil)
	f.store(ownSpace, 1, 1, 2, 3, 4)
	f.store(ownSpace, 2, 1, 2, 3, 4, 5)
	f.store(ownSpace, 3, 1, 2, 30)
	f.store(ownSpace, 3, 9)
	for i, local := range [][]uint64{{1, 2, 3, 4}, {1, 2, 30, 31}, {1, 2, 30}, {1, 7, 3, 4}, {8}} {
		f.chat(ownSpace, string(rune('a'+i)), local, 0)
	}
	root := f.tree("model=m")
	if len(root.Children) != 2 || *root.Sampled != 5 || root.Node != nil || root.More != 0 || !root.Whole {
		t.Fatalf("%+v", root)
	}
	widest := root.Children[0]
	if widest.Blocks != 2 || widest.Holders != 3 || widest.Depth != 2 || *widest.Hits != 4 || *widest.Children != 2 {
		t.Errorf("%+v, hits %d, children %d", widest, *widest.Hits, *widest.Children)
	}
	if alone := root.Children[1]; alone.Blocks != 1 || alone.Holders != 1 || *alone.Hits != 0 || *alone.Children != 0 {
		t.Errorf("%+v", alone)
	}
	below := f.tree("node=" + widest.ID)
	if len(below.Children) != 2 || *below.Node != widest.ID {
		t.Fatalf("%+v", below)
	}
	// {1, 7, 3, 4} has the block that follows, and not what is before it.
	if on := below.Children[0]; on.Blocks != 3 || on.Holders != 2 || on.Depth != 5 || *on.Hits != 1 {
		t.Errorf("%+v, hits %d", on, *on.Hits)
	}
	if off := below.Children[1]; off.Blocks != 1 || off.Holders != 1 || off.Depth != 3 || *off.Hits != 2 {
		t.Errorf("%+v, hits %d", off, *off.Hits)
	}
	var h holders
	if err := json.Unmarshal(f.get("api/prefixes/holders?node="+below.Children[0].ID).Body, &h); err != nil {
		t.Fatal(err)
	}
	if h.Blocks != 3 || len(h.Holders) != 2 || h.Holders[0].Worker != "2" || h.Holders[0].Depth != 3 || h.Holders[1].Worker != "1" || h.Holders[1].Depth != 2 || h.Holders[0].Tier != "device" {
		t.Errorf("%+v", h)
	}
	if one := f.tree("model=m&limit=1"); len(one.Children) != 1 || one.More != 1 {
		t.Errorf("%+v", one)
	}
	// What is let go of while somebody looks is gone, and nothing else.
	node := "api/prefixes?node=" + below.Children[1].ID
	if a := f.get(node); a.Status != 200 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	f.apply(ownSpace, 3, event.Event{Kind: event.Cleared, AllTiers: true})
	for _, path := range []string{node, strings.Replace(node, "?", "/holders?", 1)} {
		if a := f.get(path); a.Status != 404 || !strings.Contains(string(a.Body), edge.UnknownNode) {
			t.Errorf("%s: %d %s", path, a.Status, a.Body)
		}
	}
	if a := f.get("api/prefixes?node=" + widest.ID); a.Status != 200 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
}

// A node's id says nothing outside of its process: another one gives the same prefix
// another, and knows none of this one's.
func TestNodesAreOfTheirProcess(t *testing.T) {
	a, b := newFixture(t, nil), newFixture(t, nil)
	a.store(ownSpace, 1, 1, 2)
	b.store(ownSpace, 1, 1, 2)
	x, y := a.first(ownSpace).ID, b.first(ownSpace).ID
	if x == y || a.first(ownSpace).ID != x {
		t.Errorf("%s and %s", x, y)
	}
	if reply := b.get("api/prefixes?node=" + x); reply.Status != 404 {
		t.Errorf("%d %s", reply.Status, reply.Body)
	}
}

// The ids that are remembered are bounded; one that is asked for stays.
func TestNodesAreForgotten(t *testing.T) {
	n := newNodes()
	name := func(i int) string {
		return n.name(node{space: ownSpace, path: steps(i)})
	}
	kept, left := name(1), name(2)
	for i := range 3 * maxNodes {
		name(i + 10)
		if _, ok := n.find(kept); !ok {
			t.Fatalf("gone after %d", i)
		}
		if len(n.now)+len(n.older) > 2*maxNodes {
			t.Fatalf("%d", len(n.now)+len(n.older))
		}
	}
	if _, ok := n.find(left); ok {
		t.Error("nothing is forgotten")
	}
}

// A pool is told as a pool: in no list of ranks, with its name while somebody names it, and not while nobody
// knows what is in it.
func TestPoolsHoldPrefixes(t *testing.T) {
	f := newFixture(t, nil)
	f.store(ownSpace, 1, 1, 2, 3)
	x := f.replica.Set().Lookup(ownSpace)
	names := func(list ...event.Pool) {
		t.Helper()
		if err := x.SetPools(t.Context(), 1, []uint32{0}, list); err != nil {
			t.Fatal(err)
		}
	}
	names(event.Pool{Name: "store"})
	f.apply(ownSpace, 1, event.Event{Kind: event.Stored, Tier: event.External, Engine: engineHashes(1, []uint64{1, 2, 3})})
	f.apply(ownSpace, 1, event.Event{Kind: event.Removed, Engine: engineHashes(1, []uint64{1, 2, 3})[2:]})
	shown := func(where string, pools ...poolHolder) {
		t.Helper()
		root := f.tree("model=m")
		if len(root.Children) == 0 {
			t.Fatalf("%s: %+v", where, root)
		}
		var h holders
		if err := json.Unmarshal(f.get("api/prefixes/holders?node="+root.Children[0].ID).Body, &h); err != nil {
			t.Fatal(err)
		}
		if len(h.Holders) != 1 || h.Holders[0].Worker != "1" || h.Holders[0].Depth != 2 || !slices.Equal(h.Pools, pools) {
			t.Errorf("%s: %+v and %+v, want %+v", where, h.Holders, h.Pools, pools)
		}
	}
	// Its third block forks off for nobody: one branch of two blocks, or of three.
	shown("offloaded", poolHolder{"store", 3})
	names()
	shown("nobody names it")
	names(event.Pool{Name: "store", Source: &event.PoolSource{Events: "tcp://127.0.0.1:1", Keys: "http://127.0.0.1:1", Parts: 1}})
	shown("its stream is not read")
}
