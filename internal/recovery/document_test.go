package recovery

import (
	"reflect"
	"testing"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/doctest"
)

// The document's publisher has said three events, and keeps two.
func TestExamplesOfTheDocument(t *testing.T) {
	said, err := new(event.Decoder).Decode(doctest.Hex(t, doctest.Wire, "native-batch"))
	if err != nil {
		t.Fatal(err)
	}
	batch := func(ev event.Event) *event.Batch {
		b := *said
		b.Events = []event.Event{ev}
		return &b
	}

	request := Request{DPRank: 1, From: 6}
	doctest.Same(t, doctest.Wire, "recover-request", AppendRequest(nil, request))
	if got, err := DecodeRequest(doctest.Hex(t, doctest.Wire, "recover-request")); err != nil || got != request {
		t.Errorf("request %+v, %v", got, err)
	}

	stored := event.Event{Kind: event.Stored, DPRank: 1, Engine: []uint64{0x11}, Local: []uint64{0x22}}
	for name, reply := range map[string]Reply{
		"recover-events":  {Kind: Events, More: true, Last: 7, Body: event.AppendBatch(nil, batch(said.Events[1]))},
		"recover-dump":    {Kind: Dump, Last: 7, Dump: 5, Parts: 1, Body: appendFrame(nil, batch(stored), [][]uint32{{2}})},
		"recover-too-new": {Kind: TooNew, Last: 7, Body: []byte{}},
	} {
		reply.Incarnation = said.Incarnation
		doctest.Same(t, doctest.Wire, name, AppendReply(nil, &reply))
		if got, err := DecodeReply(doctest.Hex(t, doctest.Wire, name)); err != nil || !reflect.DeepEqual(got, reply) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}

	reply, err := DecodeReply(doctest.Hex(t, doctest.Wire, "recover-dump"))
	if err != nil {
		t.Fatal(err)
	}
	var frames Frames
	err = frames.Add(reply.Body, func(b *event.Batch, copies [][]uint32) error {
		if !reflect.DeepEqual(b, batch(stored)) || copies[0][0] != 2 {
			t.Errorf("the dump is %+v, %v copies", b, copies)
		}
		return nil
	})
	if err != nil || frames.Finish() != nil {
		t.Errorf("the dump: %v", err)
	}
}
