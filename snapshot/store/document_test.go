package store

import (
	"encoding/json"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/testing/doctest"
)

func TestExamplesOfTheDocument(t *testing.T) {
	stream := doctest.Fields(t, doctest.Wire, "name-examples")["stream"]
	m, err := decodeManifest(doctest.JSON(t, doctest.Stored, "snapshot-manifest"), stream)
	if err != nil {
		t.Fatal(err)
	}
	text, err := encodeManifest(m, stream)
	if err != nil {
		t.Fatal(err)
	}
	doctest.SameJSON(t, doctest.Stored, "snapshot-manifest", json.RawMessage(text))
	e := m.Snapshots[0]
	if Name(e.Seq, e.Fence) != e.Name || !strings.Contains(doctest.Page(t, doctest.Stored), "`"+partName(e.Name, 0)+"`") {
		t.Errorf("the document's snapshot is %s, here %s in parts %s", e.Name, Name(e.Seq, e.Fence), partName(e.Name, 0))
	}

	b, err := broker.Open(deadline(t), broker.Config{URL: broker.Embedded, DataDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	js, err := jetstream.New(b.Conn())
	if err != nil {
		t.Fatal(err)
	}
	kv, err := OpenKV(deadline(t), js, "prod", 1)
	if err != nil {
		t.Fatal(err)
	}
	st, err := kv.Status(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	var doc jetstream.KeyValueConfig
	if err := json.Unmarshal(doctest.JSON(t, doctest.Stored, "snapshot-bucket"), &doc); err != nil {
		t.Fatal(err)
	}
	code := st.Config()
	code.Metadata = nil // the server's own
	if !reflect.DeepEqual(code, doc) {
		t.Errorf("the code makes %+v\nthe document %+v", code, doc)
	}

	names := doctest.Fields(t, doctest.Wire, "name-examples")
	if names["manifests"] != KVName("prod") || names["snapshots"] != bucketName(names["stream"]) {
		t.Errorf("%s and %s in the document, %s and %s here", names["manifests"], names["snapshots"], KVName("prod"), bucketName(names["stream"]))
	}
}
