package fleet

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"time"
)

// maxModelList bounds what of an engine's list of models is read, in bytes, and
// maxAdapters the adapters of one engine that are remembered.
const (
	maxModelList = 1 << 20
	maxAdapters  = 4096
)

// AskModels asks every engine for the models that it serves, and learns the names
// of its LoRA adapters: those that name a parent, as vLLM and SGLang list them. It
// returns how many engines answered.
func (f *Fleet) AskModels(ctx context.Context, client *http.Client, timeout time.Duration) int {
	answered := f.each(func(*Model) bool { return true }, func(e *Engine) int {
		data, ok := fetch(ctx, client, e.URL+"/v1/models", timeout, maxModelList)
		if !ok {
			return 0
		}
		names, ok := parseModels(data)
		if !ok {
			return 0
		}
		e.loras.Store(&names)
		return 1
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.Models() {
		f.learn(m)
	}
	return answered
}

// parseModels returns the names of adapters, sorted.
func parseModels(data []byte) (names []string, ok bool) {
	var list struct {
		Data []struct {
			ID     string `json:"id"`
			Parent string `json:"parent"`
		} `json:"data"`
	}
	if json.Unmarshal(data, &list) != nil {
		return nil, false
	}
	for _, m := range list.Data {
		if m.Parent != "" && m.ID != "" && len(names) < maxAdapters {
			names = append(names, m.ID)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), true
}

// learn collects the adapters of a model's engines. f.mu is held.
func (f *Fleet) learn(m *Model) {
	at := map[string][]uint64{}
	engines := m.Engines()
	for _, id := range slices.Sorted(maps.Keys(engines)) {
		for _, name := range *engines[id].loras.Load() {
			at[name] = append(at[name], id)
		}
	}
	m.loras.Store(&at)
}

// LoraWorkers returns the workers that an adapter may be asked of; nil where all
// workers have it, or none has said so.
func (m *Model) LoraWorkers(name string) []uint64 {
	at := (*m.loras.Load())[name]
	if len(at) == len(m.Engines()) {
		return nil
	}
	return at
}

func (m *Model) hasLora(name string) bool { return len((*m.loras.Load())[name]) > 0 }
