package sidecar

import (
	"io"
	"testing"

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
