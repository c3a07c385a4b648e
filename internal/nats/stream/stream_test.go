package stream

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
)

var testSpace = event.Space{Model: "org/model-7B v2", BlockSize: 16, Group: "tenant"}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func startServer(t *testing.T) jetstream.JetStream {
	t.Helper()
	b, err := broker.Open(testContext(t), broker.Config{
		URL: broker.Embedded, DataDir: t.TempDir(), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	js, err := jetstream.New(b.Conn())
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// small is a configuration for a test's disk.
var small = Config{MaxBytes: 1 << 20}

func TestEnsureMakesWhatListFinds(t *testing.T) {
	js := startServer(t)
	spaces := []event.Space{
		testSpace,
		{Model: testSpace.Model, BlockSize: 32, Group: "tenant"},
		{Model: testSpace.Model, BlockSize: 16},
	}
	for _, sp := range spaces {
		for range 2 { // the second time it is there
			info, err := Ensure(testContext(t), js, "prod", sp, small)
			if err != nil {
				t.Fatal(err)
			}
			if info.Space != sp || info.Namespace != "prod" || info.Name != Name("prod", sp) || info.Created.IsZero() {
				t.Errorf("info %+v of %+v", info, sp)
			}
		}
	}
	if _, err := Ensure(testContext(t), js, "prod2", testSpace, small); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(testContext(t), jetstream.StreamConfig{Name: "other", Subjects: []string{"kvatlas.prod.x"}, MaxBytes: 1000}); err != nil {
		t.Fatal(err)
	}
	list, err := List(testContext(t), js, "prod")
	if err != nil {
		t.Fatal(err)
	}
	found := map[event.Space]bool{}
	for _, info := range list {
		found[info.Space] = true
		if info.At.Before(info.Created) {
			t.Errorf("made at %v and looked at at %v, by the server's clock", info.Created, info.At)
		}
	}
	if len(list) != len(spaces) || len(found) != len(spaces) {
		t.Errorf("listed %+v", list)
	}

	s, err := js.Stream(testContext(t), Name("prod", testSpace))
	if err != nil {
		t.Fatal(err)
	}
	c := s.CachedInfo().Config
	if c.Storage != jetstream.FileStorage || c.Retention != jetstream.LimitsPolicy || c.Discard != jetstream.DiscardNew ||
		c.MaxAge != time.Hour || c.MaxBytes != 1<<20 || c.Duplicates != 2*time.Minute || c.PersistMode != jetstream.DefaultPersistMode {
		t.Errorf("configuration %+v", c)
	}
	if _, err := js.Publish(testContext(t), Subject("prod", testSpace, 7), []byte("x")); err != nil {
		t.Fatal(err)
	}
	info, err := Get(testContext(t), js, Name("prod", testSpace))
	if err != nil || info.LastSeq != 1 || info.Messages != 1 {
		t.Errorf("after one message: %+v, %v", info, err)
	}
}

// Every configuration that loses acknowledged messages, or is not the space's
// stream, is refused with a word that says why; it hides no other stream.
func TestUnsafeConfigurationsAreRefused(t *testing.T) {
	js := startServer(t)
	if _, err := Ensure(testContext(t), js, "ns", testSpace, small); err != nil {
		t.Fatal(err)
	}
	other := event.Space{Model: "other", BlockSize: 1}
	if _, err := Ensure(testContext(t), js, "ns", other, small); err != nil {
		t.Fatal(err)
	}
	name := Name("ns", testSpace)
	s, err := js.Stream(testContext(t), name)
	if err != nil {
		t.Fatal(err)
	}
	good := s.CachedInfo().Config
	for says, change := range map[string]func(c *jetstream.StreamConfig){
		"in memory":           func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage },
		"asynchronously":      func(c *jetstream.StreamConfig) { c.PersistMode = jetstream.AsyncPersistMode },
		"not acknowledge":     func(c *jetstream.StreamConfig) { c.NoAck = true },
		"by limits":           func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy },
		"discards old":        func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld },
		"limited number":      func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 5 },
		"captures":            func(c *jetstream.StreamConfig) { c.Subjects = []string{"kvatlas.ns.x.*"} },
		"captures [":          func(c *jetstream.StreamConfig) { c.Subjects = append(c.Subjects, "kvatlas.ns.y.*") },
		"has the metadata of": func(c *jetstream.StreamConfig) { c.Metadata[metaModel] = "else" },
		"no space":            func(c *jetstream.StreamConfig) { c.Metadata[metaBlockSize] = "many" },
	} {
		if err := js.DeleteStream(testContext(t), name); err != nil {
			t.Fatal(err)
		}
		bad := good
		bad.Metadata = map[string]string{}
		for k, v := range good.Metadata {
			if strings.HasPrefix(k, "kvatlas.") {
				bad.Metadata[k] = v
			}
		}
		change(&bad)
		if _, err := js.CreateStream(testContext(t), bad); err != nil {
			t.Fatalf("%s: %v", says, err)
		}
		if _, err := Ensure(testContext(t), js, "ns", testSpace, small); !errors.Is(err, ErrUnsafe) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: Ensure: %v", says, err)
		}
		list, err := List(testContext(t), js, "ns")
		if !errors.Is(err, ErrUnsafe) || len(list) != 1 || list[0].Space != other {
			t.Errorf("%s: List: %+v, %v", says, list, err)
		}
	}
	// Discarding by age alone loses nothing that age would not take anyway.
	if err := js.DeleteStream(testContext(t), name); err != nil {
		t.Fatal(err)
	}
	aged := good
	aged.Discard, aged.MaxBytes = jetstream.DiscardOld, -1
	if _, err := js.CreateStream(testContext(t), aged); err != nil {
		t.Fatal(err)
	}
	if _, err := Ensure(testContext(t), js, "ns", testSpace, small); err != nil {
		t.Errorf("an age limit alone: %v", err)
	}
}

func TestEnsureRefusesWhatCannotBeNamed(t *testing.T) {
	js := startServer(t)
	for _, ns := range []string{"", "a.b", "a b", "*", strings.Repeat("x", maxNamespace+1)} {
		if _, err := Ensure(testContext(t), js, ns, testSpace, small); err == nil {
			t.Errorf("namespace %q: accepted", ns)
		}
	}
	if _, err := Ensure(testContext(t), js, "ns", event.Space{BlockSize: 16}, small); err == nil {
		t.Error("a space without a model: accepted")
	}
}

func TestNamesAreReadableUniqueAndValid(t *testing.T) {
	seen := map[string]event.Space{}
	long := strings.Repeat("long.name/", 50)
	for _, sp := range []event.Space{
		testSpace,
		{Model: "a", Group: "b", BlockSize: 16},
		{Model: "ab", BlockSize: 16},
		{Model: "a", Group: "b", BlockSize: 17},
		{Model: "a.b", BlockSize: 16},
		{Model: "a>b", BlockSize: 16},
		{Model: "Qwen3 * 模型", BlockSize: 16},
		{Model: long, BlockSize: 16},
		{Model: long + "x", BlockSize: 16},
	} {
		tok := Token(sp)
		if other, dup := seen[tok]; dup {
			t.Errorf("%+v and %+v are both %s", sp, other, tok)
		}
		seen[tok] = sp
		if slug(tok) != tok || len(tok) > 100 {
			t.Errorf("token %q", tok)
		}
		subject := Subject("ns", sp, 1<<64-1)
		if w, err := Worker(subject); err != nil || w != 1<<64-1 || strings.Count(subject, ".") != 3 {
			t.Errorf("subject %q: worker %d, %v", subject, w, err)
		}
	}
	if !strings.HasPrefix(Token(testSpace), "org_model-7B_v2-b16-") {
		t.Errorf("token %s", Token(testSpace))
	}
	for _, s := range []string{"", "kvatlas", "kvatlas.a.b.", "kvatlas.a.b.-1", "kvatlas.a.b.18446744073709551616"} {
		if _, err := Worker(s); err == nil {
			t.Errorf("subject %q names a worker", s)
		}
	}
}
