package registry

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/doctest"
)

func TestRecordsOfTheDocument(t *testing.T) {
	same := func(name string, v any, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		doctest.SameJSON(t, doctest.Stored, name, v)
	}
	sp := event.Space{Model: "org/model-7B v2", BlockSize: 16, Group: "tenant"}
	r, err := parseWorker(leaseKey(Key{sp, 7}), doctest.JSON(t, doctest.Stored, "registry-lease"))
	same("registry-lease", r, err)
	if r != nil && r.HashScheme != Scheme(16) {
		t.Errorf("the document's hash scheme is %q, this one %q", r.HashScheme, Scheme(16))
	}
	r, err = parseWorker(leaseKey(Key{sp, 7}), doctest.JSON(t, doctest.Stored, "registry-tombstone"))
	same("registry-tombstone", r, err)
	_, d, err := parseDrain("drain.7", doctest.JSON(t, doctest.Stored, "registry-drain"))
	same("registry-drain", d, err)
	var b beatRecord
	err = parseJSON(doctest.JSON(t, doctest.Stored, "registry-replica"), &b)
	same("registry-replica", b, err)

	page := doctest.Page(t, doctest.Stored)
	for _, key := range []string{leaseKey(Key{sp, 7}), httpKey(Key{sp, 7}, 1), drainKey(7), replicaKey("a")} {
		for _, named := range [][2]string{{stream.Token(sp), "<space>"}, {".7", ".<worker>"}, {".1", ".<rank>"}, {".a", ".<name>"}} {
			key = strings.Replace(key, named[0], named[1], 1)
		}
		if !strings.Contains(page, "| `"+key+"` |") {
			t.Errorf("the document has no key %s", key)
		}
	}
	names := doctest.Fields(t, doctest.Wire, "name-examples")
	if names["registry"] != BucketName("prod") {
		t.Errorf("the bucket is %s in the document, %s here", names["registry"], BucketName("prod"))
	}
	hashes := doctest.Fields(t, doctest.Wire, "hash-examples")
	if want := fmt.Sprint(event.WorkerID("pod-1")); hashes["worker pod-1"] != want {
		t.Errorf("worker pod-1 is %s in the document, %s here", hashes["worker pod-1"], want)
	}
	if hashes["hash scheme"] != Scheme(16) {
		t.Errorf("the hash scheme is %s in the document, %s here", hashes["hash scheme"], Scheme(16))
	}
}

func TestBucketOfTheDocument(t *testing.T) {
	b, err := OpenBucket(deadline(t), startBroker(t, t.TempDir()).Conn(), "prod", BucketConfig{})
	if err != nil {
		t.Fatal(err)
	}
	st, err := b.kv.Status(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	var doc jetstream.KeyValueConfig
	if err := json.Unmarshal(doctest.JSON(t, doctest.Stored, "registry-bucket"), &doc); err != nil {
		t.Fatal(err)
	}
	code := st.Config()
	code.Metadata = nil // the server's own
	if !reflect.DeepEqual(code, doc) {
		t.Errorf("the code makes %+v\nthe document %+v", code, doc)
	}
}
