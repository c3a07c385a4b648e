package stream

import (
	"encoding/json"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/testing/doctest"
)

func TestNamesOfTheDocument(t *testing.T) {
	doc := doctest.Fields(t, doctest.Wire, "name-examples")
	for key, code := range map[string]string{
		"namespace": "prod", "model": testSpace.Model, "block size": "16", "group": testSpace.Group, "worker": "7",
		"space": Token(testSpace), "stream": Name("prod", testSpace), "captured": captures("prod", testSpace, 0, 1),
		"events": Subject("prod", testSpace, 7), "live": LiveSubject("prod", testSpace, 7), "recover": RecoverSubject("prod", testSpace, 7),
	} {
		if doc[key] != code {
			t.Errorf("%s: %q in the document, %q in the code", key, doc[key], code)
		}
	}
}

// The stream that Ensure makes is the one in the document, and one that is made
// as the document says is taken.
func TestStreamOfTheDocument(t *testing.T) {
	js := startServer(t)
	var doc jetstream.StreamConfig
	if err := json.Unmarshal(doctest.JSON(t, doctest.Wire, "stream-config"), &doc); err != nil {
		t.Fatal(err)
	}
	if _, err := Ensure(testContext(t), js, "prod", testSpace, Config{}); err != nil {
		t.Fatal(err)
	}
	made := config(t, js)
	if err := js.DeleteStream(testContext(t), made.Name); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(testContext(t), doc); err != nil {
		t.Fatal(err)
	}
	if told := config(t, js); !reflect.DeepEqual(made, told) {
		t.Errorf("the code makes\n%+v\nthe document\n%+v", made, told)
	}
	if info, err := Ensure(testContext(t), js, "prod", testSpace, Config{}); err != nil || info.Space != testSpace {
		t.Errorf("a stream as in the document: %+v, %v", info, err)
	}
}

func config(t *testing.T, js jetstream.JetStream) jetstream.StreamConfig {
	t.Helper()
	s, err := js.Stream(testContext(t), Name("prod", testSpace))
	if err != nil {
		t.Fatal(err)
	}
	c := s.CachedInfo().Config
	maps.DeleteFunc(c.Metadata, func(k, _ string) bool { return strings.HasPrefix(k, "_nats.") }) // the server's own
	return c
}
