package fleet

import (
	"context"
	"encoding/json"
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
	return f.each(func(*Model) bool { return true }, func(e *Engine) int {
		data, ok := e.fetch(ctx, client, "/v1/models", timeout, maxModelList)
		if !ok {
			return 0
		}
		names, ok := parseModels(data)
		if !ok {
			return 0
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if e.model.Engine(e.ID) == e { // else it has left meanwhile
			e.model.learn(e, names)
		}
		return 1
	})
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

// learn notes the adapters that an engine has, sorted. Fleet.mu is held.
func (m *Model) learn(e *Engine, names []string) {
	for _, name := range e.loras {
		if _, has := slices.BinarySearch(names, name); !has {
			m.loras.Compute(name, func(at []uint64, _ bool) ([]uint64, bool) {
				at = slices.DeleteFunc(slices.Clone(at), func(id uint64) bool { return id == e.ID })
				return at, len(at) == 0
			})
		}
	}
	for _, name := range names {
		m.loras.Compute(name, func(at []uint64, _ bool) ([]uint64, bool) {
			i, has := slices.BinarySearch(at, e.ID)
			if !has {
				at = slices.Insert(slices.Clone(at), i, e.ID)
			}
			return at, false
		})
	}
	e.loras = names
}

// LoraWorkers returns the workers that an adapter may be asked of; nil where all
// workers have it, or none has said so.
func (m *Model) LoraWorkers(name string) []uint64 {
	at, _ := m.loras.Load(name)
	if len(at) == len(m.Engines()) {
		return nil
	}
	return at
}

func (m *Model) hasLora(name string) bool {
	_, has := m.loras.Load(name)
	return has
}
