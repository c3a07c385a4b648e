package ingest

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/doctest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

func TestConsumerOfTheDocument(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	n.gapWait = 0 // by default, as in the document
	n.worker(1, nil)
	in := n.open("a", nil, nil)
	var doc jetstream.ConsumerConfig
	if err := json.Unmarshal(doctest.JSON(t, doctest.Wire, "consumer-config"), &doc); err != nil {
		t.Fatal(err)
	}
	name := stream.Name("default", testSpace)
	var code jetstream.Consumer
	waittest.For(t, "the replica has its consumer", func() (made bool) {
		var err error
		code, err = n.js.Consumer(deadline(t), name, doc.Durable)
		return err == nil
	})
	in.Close()
	if err := n.js.DeleteConsumer(deadline(t), name, doc.Durable); err != nil {
		t.Fatal(err)
	}
	told, err := n.js.CreateConsumer(deadline(t), name, doc)
	if err != nil {
		t.Fatal(err)
	}
	if code, told := code.CachedInfo().Config, told.CachedInfo().Config; !reflect.DeepEqual(code, told) {
		t.Errorf("the code makes %+v\nthe document %+v", code, told)
	}
}
