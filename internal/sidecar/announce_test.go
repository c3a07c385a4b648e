package sidecar

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/registry"
)

// What the settings say of the worker is what is announced: where routers send
// requests, which pool it is of, and how prompts get to it.
func TestAnnouncedWorker(t *testing.T) {
	var c Config
	set := conf.New("kvpublisher", "test")
	c.Declare(set)
	if _, err := set.Run([]string{"--worker=pod-1", "--model=m", "--engine=tcp://h:1", "--engine-http=http://h:8000", "--role=prefill",
		"--kv-transfer=sglang", "--engine-credential-name=pool", "--bootstrap=h:8998", "--max-batched-tokens=8192", "--total-blocks=100", "--cpu"}, nil, io.Discard); err != nil {
		t.Fatal(err)
	}
	ranks, err := c.check()
	if err != nil {
		t.Fatal(err)
	}
	w := (&Sidecar{cfg: c, ranks: ranks}).worker()
	want := registry.Endpoints{HTTP: "http://h:8000", Bootstrap: "h:8998"}
	if w.Name != "pod-1" || w.Endpoints.HTTP != want.HTTP || w.Endpoints.Bootstrap != want.Bootstrap || w.Role != registry.Prefill ||
		w.KVTransfer != registry.TransferSGLang || w.Credential != "pool" || w.MaxBatchedTokens != 8192 || w.TotalBlocks != 100 || !w.CPU || len(w.Ranks) != 1 {
		t.Errorf("%+v", w)
	}
}

// What is seen of an engine is announced when it changes, and of one that says something else
// each second now and then; what else changes is announced at once all the same, and what was
// seen last is announced in the end.
func TestNewsIsBounded(t *testing.T) {
	var n news
	at := time.Unix(1e9, 0)
	said, told := registry.Worker{}, 0
	tell := func(now registry.Worker) bool {
		at = at.Add(time.Second)
		if !n.due(at, &now, &said) {
			return false
		}
		said = now
		return true
	}
	const hour = 3600
	var last registry.Worker
	for i := range hour {
		last = registry.Worker{Seen: []registry.Seen{{Error: fmt.Sprint("port ", i)}}}
		if i%2 == 1 {
			last.Seen[0].Error = ""
		}
		if tell(last) {
			told++
		} else if i == 0 {
			t.Error("the first is not announced")
		}
	}
	if told < 100 || told > seenAtOnce+hour/30 {
		t.Errorf("announced %d times in an hour", told)
	}
	other := last
	other.Hybrid = true
	for i := range 3 {
		if other.Incarnation = uint64(i + 1); !tell(other) {
			t.Error("another incarnation is not announced at once")
		}
	}
	last.Incarnation, last.Hybrid, last.Seen = other.Incarnation, true, []registry.Seen{{Error: "the last"}}
	for i := 0; !tell(last); i++ {
		if i > 30 {
			t.Fatal("what is seen last is not announced")
		}
	}
	if tell(last) {
		t.Error("nothing is new, and announced")
	}
}
