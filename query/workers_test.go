package query

import (
	"encoding/json"
	"fmt"
	"io"
	"testing"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/shard"
)

// The list of a large fleet is made while it is read: each worker is in it once, in
// order, whether it is registered, publishes, or both, and what is made ahead is a
// worker's.
func TestTheListOfWorkersIsMadeWhileItIsRead(t *testing.T) {
	const workers = 6000
	spaces := []event.Space{{Model: "a", BlockSize: 16}, {Model: "b", BlockSize: 16}, {Model: "c", BlockSize: 16, Group: "<&>"}}
	ix, reg := &fakeIndex{}, &fakeRegistry{asked: make(chan string, 1)}
	var streams []Stream
	asked := 0 // streams whose counts were taken
	for i, sp := range spaces {
		var ranks []fakeRank
		for id := range uint64(workers / 3) {
			if (id+uint64(i))%3 != 0 {
				r := shard.RankID{Worker: id}
				ranks = append(ranks, fakeRank{RankID: r, chain: []uint64{1, 2}})
				streams = append(streams, Stream{Space: sp, RankID: r, State: "following", Counts: func() map[string]uint64 {
					asked++
					return map[string]uint64{"gaps": id + 1}
				}})
			}
			if (id+uint64(i))%3 != 1 {
				w := registry.Worker{ID: id, Model: sp.Model, BlockSize: sp.BlockSize, Group: sp.Group}
				reg.entries = append(reg.entries, registry.Entry{Worker: w, Key: w.Key()})
			}
		}
		if i != 1 { // the workers of one are only registered
			ix.add(sp, ranks...)
		}
	}
	s := &Server{deps: Deps{Streams: func() []Stream { return streams }}}
	v := &view{index: ix, registry: reg}
	l := s.listWorkers(v, "")
	var text []byte
	part, ahead := make([]byte, 4096), 0
	for {
		n, err := l.Read(part)
		text, ahead = append(text, part[:n]...), max(ahead, l.ready.Len())
		if n > 0 && len(text) == n && asked > 20 {
			t.Errorf("the counts of %d streams were taken for the first part", asked)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if ahead > 2048 {
		t.Errorf("%d bytes of %d were made ahead", ahead, len(text))
	}
	var a struct{ Spaces []client.WorkerSpace }
	if err := json.Unmarshal(text, &a); err != nil || len(a.Spaces) != len(spaces) {
		t.Fatalf("%d spaces, %v", len(a.Spaces), err)
	}
	for i, sp := range a.Spaces {
		n := 0
		for id := range uint64(workers / 3) {
			is, registered := (id+uint64(i))%3 != 0 && i != 1, (id+uint64(i))%3 != 1
			if !is && !registered {
				continue
			}
			if n == len(sp.Workers) {
				t.Fatalf("%s ends before worker %d", sp.Model, id)
			}
			w := sp.Workers[n]
			n++
			if got := fmt.Sprint(w.ID, w.Info != nil, w.Blocks, len(w.Ranks)); got != fmt.Sprint(id, registered, map[bool]int{true: 2}[is], map[bool]int{true: 1}[is]) {
				t.Fatalf("%s: worker %d: %s", sp.Model, id, got)
			}
			if is && w.Ranks[0].Stream.Counts["gaps"] != id+1 {
				t.Fatalf("%s: worker %d: %+v", sp.Model, id, w.Ranks[0].Stream)
			}
		}
		if n != len(sp.Workers) {
			t.Errorf("%s: %d workers, want %d", sp.Model, len(sp.Workers), n)
		}
	}
}
