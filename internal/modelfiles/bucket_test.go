package modelfiles_test

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/modelfiles"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/testing/natstest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// What a publisher puts a router gets, byte for byte, with the permissions of docs/security.md;
// what is there is not put again, and content that is not its hash's is refused.
func TestBucket(t *testing.T) {
	nats := natstest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Patience)
	defer cancel()
	if _, err := modelfiles.OpenBucket(ctx, nats.Connect("router"), "default", 0, false); err == nil {
		t.Error("there is a bucket that nobody has made")
	}
	conn := nats.Connect("publisher-7")
	b, err := modelfiles.OpenBucket(ctx, conn, "default", 0, true)
	if err != nil {
		t.Fatal(err)
	}
	long := make([]byte, 9<<20) // two parts
	r := rand.NewChaCha8([32]byte{})
	_, _ = r.Read(long)
	set := modelfiles.Set{"tokenizer.json": long, "tokenizer_config.json": []byte(`{}`), "chat_template.jinja": {}}
	if err := b.Put(ctx, set); err != nil {
		t.Fatal(err)
	}
	before := conn.Stats().OutBytes
	if err := b.Put(ctx, set); err != nil {
		t.Fatal(err)
	}
	if sent := conn.Stats().OutBytes - before; sent > 1<<20 {
		t.Errorf("%d bytes were sent of what was there", sent)
	}
	reader, err := modelfiles.OpenBucket(ctx, nats.Connect("router"), "default", 0, false)
	if err != nil {
		t.Fatal(err)
	}
	got, err := reader.Get(ctx, set.Files())
	if err != nil || !maps.EqualFunc(got, set, bytes.Equal) || got.ID() != set.ID() || modelfiles.ID(set.Files()) != set.ID() {
		t.Fatalf("%d files, %v", len(got), err)
	}
	absent := []modelfiles.File{{Name: "tokenizer.json", Hash: modelfiles.Hash([]byte("x")), Size: 1}}
	if _, err := reader.Get(ctx, absent); err == nil {
		t.Error("what nobody has put is there")
	}
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	os, err := js.ObjectStore(ctx, modelfiles.BucketName("default"))
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{"y", strings.Repeat("x", 1<<10)} {
		if _, err := os.PutString(ctx, absent[0].Hash+".0", wrong); err != nil {
			t.Fatal(err)
		}
		if _, err := reader.Get(ctx, absent); err == nil {
			t.Errorf("content %.8q is taken for another", wrong)
		}
	}
	if err := b.Put(ctx, modelfiles.Set{"tokenizer.json": []byte("x")}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.PutString(ctx, absent[0].Hash+".0", "z"); err != nil {
		t.Fatal(err)
	}
	if err := b.Put(ctx, modelfiles.Set{"tokenizer.json": []byte("x")}); err != nil {
		t.Fatal(err)
	}
	if got, err := reader.Get(ctx, absent); err != nil || string(got["tokenizer.json"]) != "x" {
		t.Errorf("other content of the same length stays where a publisher puts the file: %v", err)
	}
	if info, err := os.Status(ctx); err != nil || info.TTL() != modelfiles.Keep {
		t.Errorf("%v: files that nobody renews are kept for %v", err, info.TTL())
	}
	nats.Sufficed()
}

// What was put is there for a router at once, also where a server answers that is behind.
func TestAServerThatIsBehind(t *testing.T) {
	br, err := broker.Open(t.Context(), broker.Config{URL: broker.Embedded, DataDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = br.Close() })
	b, err := modelfiles.OpenBucket(t.Context(), br.Conn(), "default", 0, true)
	if err != nil {
		t.Fatal(err)
	}
	natstest.Behind(t, br.Conn(), "OBJ_"+modelfiles.BucketName("default"), "")
	set := modelfiles.Set{"tokenizer.json": []byte(`{"x": 1}`)}
	if err := b.Put(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Get(t.Context(), set.Files()); err != nil || !maps.EqualFunc(got, set, bytes.Equal) {
		t.Errorf("%d files, %v", len(got), err)
	}
}

// Lists of files are bounded before anything is fetched.
func TestCheck(t *testing.T) {
	good := modelfiles.Hash(nil)
	for _, c := range []struct {
		list []modelfiles.File
		ok   bool
	}{
		{nil, true},
		{[]modelfiles.File{{"tokenizer.json", good, 1 << 20}, {modelfiles.Server, good, 2}}, true},
		{[]modelfiles.File{{"tokenizer.json", good, 1 << 30}}, false},
		{[]modelfiles.File{{"tokenizer.json", good, -1}}, false},
		{[]modelfiles.File{{"../tokenizer.json", good, 1}}, false},
		{[]modelfiles.File{{"model.safetensors", good, 1}}, false},
		{[]modelfiles.File{{"tokenizer.json", good, 1}, {"tokenizer.json", good, 1}}, false},
		{[]modelfiles.File{{"tokenizer.json", strings.ToUpper(good), 1}}, false},
		{[]modelfiles.File{{"tokenizer.json", good[:60], 1}}, false},
		{[]modelfiles.File{{"tokenizer.json", good, 60 << 20}, {"tekken.json", good, 60 << 20}}, false},
	} {
		if err := modelfiles.Check(c.list); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.list, err)
		}
	}
}

// A directory's other files cost nothing, a link to what is no file and one that is too long are refused.
func TestRead(t *testing.T) {
	dir := fstest.MapFS{"tokenizer.json": {Data: []byte("{}"), ModTime: time.Unix(1, 0)}, "model.safetensors": {Data: make([]byte, 1<<20)}}
	set, err := modelfiles.Read(dir)
	if err != nil || len(set) != 1 {
		t.Fatalf("%v %v", set, err)
	}
	was := modelfiles.Stamp(dir)
	dir["chat_template.jinja"] = &fstest.MapFile{Data: []byte("x")}
	if modelfiles.Stamp(dir) == was {
		t.Error("a new file does not show")
	}
	dir["chat_template.jinja"].Data = make([]byte, 2<<20)
	if _, err := modelfiles.Read(dir); err == nil {
		t.Error("a template of 2 MiB is read")
	}
	if _, err := modelfiles.Read(fstest.MapFS{}); err == nil {
		t.Error("no files are a set")
	}
}
