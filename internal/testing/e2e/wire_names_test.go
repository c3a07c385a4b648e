package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// wireNames gathers the names that programs use on a server.
type wireNames struct {
	t    *testing.T
	js   jetstream.JetStream
	mu   sync.Mutex
	seen map[string]bool // subjects
}

func newWireNames(t *testing.T, nc *nats.Conn, js jetstream.JetStream) *wireNames {
	n := &wireNames{t: t, js: js, seen: map[string]bool{}}
	if _, err := nc.Subscribe(">", func(msg *nats.Msg) {
		n.mu.Lock()
		defer n.mu.Unlock()
		if strings.HasPrefix(msg.Subject, "kvatlas") {
			n.seen[msg.Subject] = true
		}
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// gather adds streams, buckets with their keys, consumers, and metadata.
func (n *wireNames) gather() (all []string, err error) {
	ctx := n.t.Context()
	list := n.js.ListStreams(ctx)
	for s := range list.Info() {
		for key := range s.Config.Metadata {
			all = append(all, key)
		}
		name := s.Config.Name
		if bucket, ok := strings.CutPrefix(name, "KV_"); ok {
			kv, err := n.js.KeyValue(ctx, bucket)
			if err != nil {
				return nil, err
			}
			keys, err := kv.ListKeys(ctx)
			if err != nil {
				return nil, err
			}
			for key := range keys.Keys() {
				all = append(all, key)
			}
			name = bucket
		} else if bucket, ok := strings.CutPrefix(name, "OBJ_"); ok {
			name = bucket
		} else {
			stream, err := n.js.Stream(ctx, name)
			if err != nil {
				return nil, err
			}
			for c := range stream.ListConsumers(ctx).Info() {
				all = append(all, c.Name)
			}
		}
		all = append(all, name)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for subject := range n.seen {
		all = append(all, subject)
	}
	return all, list.Err()
}

// check requires that each name is one of the documents', and that most of
// theirs are used.
func (n *wireNames) check() {
	n.t.Helper()
	var text []byte
	for _, page := range []string{"wire-format.md", "stored-format.md"} {
		b, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", page))
		if err != nil {
			n.t.Fatal(err)
		}
		text = append(text, b...)
	}
	// `kvatlas_<namespace>_<space>`, `lease.<space>.<worker>`, and "kvatlas.model".
	patterns := map[string]*regexp.Regexp{}
	for _, m := range regexp.MustCompile("(?:\\| |or |has for each stream |taken,\\s+)`([a-z][a-z_.-]*<[^`]*)`|\"(kvatlas\\.[a-z_]+)\"").FindAllSubmatch(text, -1) {
		name := string(m[1]) + string(m[2])
		variables := regexp.MustCompile("<[a-z]+>").ReplaceAllString(regexp.QuoteMeta(name), `[a-zA-Z0-9_-]+`)
		patterns[name] = regexp.MustCompile("^" + variables + "$")
	}
	var used []string
	eventually(n.t, time.Minute, func() error {
		all, err := n.gather()
		if err != nil {
			return err
		}
		for _, name := range all {
			known := strings.HasPrefix(name, "_nats.") // the server's own
			for pattern, re := range patterns {
				if re.MatchString(name) {
					known = true
					used = append(used, pattern)
				}
			}
			if !known {
				n.t.Errorf("%s is a name that the documents do not have", name)
			}
		}
		slices.Sort(used)
		used = slices.Compact(used)
		for _, want := range []string{"manifest.<stream>", "kvatlas_<namespace>_<space>_snapshots", "kvatlas-route.<namespace>.<space>", "lease.<space>.<worker>"} {
			if !slices.Contains(used, want) {
				return fmt.Errorf("nothing is called %s; used are %q of %d", want, used, len(patterns))
			}
		}
		return nil
	})
	n.t.Logf("used: %q", used)
}
