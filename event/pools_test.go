package event

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

func TestPoolsThatCannotBe(t *testing.T) {
	for _, bad := range [][]Pool{
		{{}}, {{Name: "a\x1b[2J"}}, {{Name: "\xff"}}, {{Name: "a", Tiers: []string{"device"}}}, {{Name: "a"}, {Name: "b", Tiers: []string{"external"}}},
		{{Name: "a", Tiers: []string{"disk", "DISK"}}}, {{Name: "a", Tiers: []string{"tape"}}}, {{Name: "a", Chunk: 1 << 25}}, {{Name: "a", Age: 29}},
		make([]Pool, 4),
	} {
		if CheckPools(bad) == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	good := []Pool{{Name: "a", Tiers: []string{"disk"}}, {Name: "b", Chunk: 256}}
	if err := CheckPools(good); err != nil || !PoolOf(good, External) || !PoolOf(good, Disk) || PoolOf(good, HostPinned) {
		t.Errorf("%v", err)
	}
	if (Pool{Name: "b"}).Equal(good[1]) || !(Pool{Name: "b", Chunk: 256, Tiers: []string{"SHARED"}}).Equal(good[1]) {
		t.Error("the same are other pools, or others the same")
	}
}

// TestSourcesThatCannotBe: of which nothing could be read, or other than its keys.
func TestSourcesThatCannotBe(t *testing.T) {
	good := PoolSource{Events: "tcp://m:1", Keys: "http://m:2/store", Parts: 1}
	for i, bad := range []func(*Pool){
		func(p *Pool) { p.Source.Events = "m:1" }, func(p *Pool) { p.Source.Keys = "m:2" }, func(p *Pool) { p.Source.Keys = "file:///etc" },
		func(p *Pool) { p.Source.Keys = "http://u@m:2" }, func(p *Pool) { p.Source.Keys = "http://m:2/?" }, func(p *Pool) { p.Source.Keys = "http://m:2/#a" },
		func(p *Pool) { p.Source.Keys = "http://m:2/?a=" }, func(p *Pool) { p.Source.Parts = 0 }, func(p *Pool) { p.Source.Parts = MaxPoolParts + 1 },
		func(p *Pool) { p.Source.Groups = make([]uint32, 1025) }, func(p *Pool) { p.Age = 30 }, func(p *Pool) { p.OwnNames = true },
	} {
		from := good
		p := Pool{Name: "a", Source: &from}
		if err := CheckPools([]Pool{p}); err != nil {
			t.Fatal(err)
		}
		if bad(&p); CheckPools([]Pool{p}) == nil {
			t.Errorf("%d: %+v of %+v is taken", i, from, p)
		}
	}
}

// TestNobodyPublishesAsAPool: a stream of the rank that pools have could ask for a dump in the
// place of what a pool has.
func TestNobodyPublishesAsAPool(t *testing.T) {
	var d Decoder
	said := &Batch{Space: Space{Model: "m", BlockSize: 1}, Worker: WorkerID("store"), Incarnation: 1,
		Events: []Event{{ID: 1, Kind: Cleared, AllTiers: true, DPRank: PoolRank - 1}}}
	beat := &Batch{Space: said.Space, Worker: said.Worker, Incarnation: 1, Last: []Position{{DPRank: PoolRank - 1, ID: 3}}}
	forge := func(msg []byte) []byte { // nobody encodes it
		return bytes.Replace(msg, binary.AppendUvarint(nil, uint64(PoolRank-1)), binary.AppendUvarint(nil, uint64(PoolRank)), 1)
	}
	router := []byte(`{"worker_id":"store","event":{"event_id":1,"data":"cleared","dp_rank":4294967295}}`)
	for _, msg := range [][]byte{forge(AppendBatch(nil, said)), forge(AppendHeartbeat(nil, beat)), router} {
		if got, err := d.DecodeAny(msg); len(msg) == 0 || !errors.Is(err, ErrMalformed) {
			t.Errorf("%+v, %v", got, err)
		}
	}
	said.Events[0].DPRank, beat.Last[0].DPRank = PoolRank, PoolRank
	if err := said.Check(); !errors.Is(err, ErrEncode) || len(AppendBatch(nil, said)) > 0 {
		t.Errorf("a batch of the pools' rank: %v", err)
	}
	if err := beat.Check(); !errors.Is(err, ErrEncode) || len(AppendHeartbeat(nil, beat)) > 0 {
		t.Errorf("a heartbeat of the pools' rank: %v", err)
	}
}
