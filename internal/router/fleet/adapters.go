package fleet

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/puzpuzpuz/xsync/v3"
)

// maxModelList bounds what of an engine's list of models is read, in bytes, and
// maxNames the names of either kind of one engine that are remembered.
const (
	maxModelList = 1 << 20
	maxNames     = 4096
)

// listed is what an engine lists at /v1/models, sorted: LoRA adapters, names that the model
// itself goes by, and who is said to own it, which is how vLLM and SGLang call themselves.
type listed struct {
	adapters, served, owners []string
	length                   int64 // max_model_len; 0 if it is not there, or not one
}

// AskModels asks every engine for what it serves, and learns the names of its LoRA
// adapters, those that name a parent, as vLLM and SGLang list them, and of its model, and
// which release of which engine it is. It returns how many engines answered.
func (f *Fleet) AskModels(ctx context.Context, client *http.Client, timeout time.Duration) int {
	return f.askModels(ctx, client, timeout, true)
}

// AskNew is AskModels of the engines that have not been asked. It waits for those that another call is asking.
func (f *Fleet) AskNew(ctx context.Context, client *http.Client, timeout time.Duration) int {
	return f.askModels(ctx, client, timeout, false)
}

func (f *Fleet) askModels(ctx context.Context, client *http.Client, timeout time.Duration, all bool) int {
	return f.each(func(*Model) bool { return true }, func(e *Engine) int {
		e.asking.Lock() // who has not been asked by now is waited for, whoever asks
		defer e.asking.Unlock()
		if e.asked.Swap(true) && !all {
			return 0
		}
		data, ok := e.fetch(ctx, client, "/v1/models", timeout, maxModelList)
		var names listed
		if ok {
			names, ok = parseModels(data)
		}
		e.length.Store(names.length) // who does not answer may be another one by now
		if !ok {
			if ctx.Err() != nil { // there was no time for it
				e.asked.Store(false)
				f.tellOf(e)
			}
			return 0
		}
		was := e.side()
		if e.owned(&names); len(names.owners) == 1 {
			e.askSoftware(ctx, client, names.owners[0], timeout)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if e.model.Engine(e.ID) == e { // else it has left meanwhile
			e.model.learn(e, names)
			if e.side() != was {
				f.arrange(e.model)
			}
		}
		return 1
	})
}

// Came is told when engines have come, or have been started anew, that have not been asked for what they serve.
func (f *Fleet) Came() <-chan struct{} { return f.came }

// tellOf tells of an engine that has not been asked.
func (f *Fleet) tellOf(e *Engine) {
	if e.URL == "" || e.asked.Load() {
		return
	}
	select {
	case f.came <- struct{}{}:
	default: // that is to be heard yet
	}
}

func parseModels(data []byte) (names listed, ok bool) {
	var list struct {
		Data []struct {
			ID     string `json:"id"`
			Parent string `json:"parent"`
			Owner  string `json:"owned_by"`
			Length int64  `json:"max_model_len"`
		} `json:"data"`
	}
	if json.Unmarshal(data, &list) != nil {
		return names, false
	}
	lengths := map[int64]bool{}
	for _, m := range list.Data {
		kind := &names.served
		if m.Parent != "" {
			kind = &names.adapters
		} else {
			lengths[max(m.Length, 0)] = true
		}
		if m.ID != "" && len(*kind) < maxNames {
			*kind = append(*kind, m.ID)
			names.owners = append(names.owners, m.Owner)
		}
	}
	if len(lengths) == 1 {
		names.length = slices.Collect(maps.Keys(lengths))[0]
	}
	for _, kind := range []*[]string{&names.adapters, &names.served, &names.owners} {
		slices.Sort(*kind)
		*kind = slices.Compact(*kind)
	}
	return names, true
}

// learn notes the names that an engine has. Fleet.mu is held.
func (m *Model) learn(e *Engine, names listed) {
	m.loras.learn(e.ID, e.names.adapters, names.adapters)
	m.served.learn(e.ID, e.names.served, names.served)
	m.owners.learn(e.ID, e.names.owners, names.owners)
	e.names = names
}

// OwnedBy reports whether all engines list the model as owned by the one that is named.
func (m *Model) OwnedBy(name string) bool {
	at, _ := m.owners.at.Load(name)
	return len(at) > 0 && len(at) == len(m.Engines())
}

// MaxLength is how many tokens a prompt and its answer may have, as all engines say; 0 if they do
// not, or not the same.
func (m *Model) MaxLength() (n int) {
	for _, e := range m.Engines() {
		is := int(e.length.Load())
		if e.URL == "" {
			continue // who gets no requests
		}
		if is == 0 || n != 0 && n != is {
			return 0
		}
		n = is
	}
	return n
}

// LoraWorkers returns the workers that an adapter may be asked of; nil where all
// workers have it, or none has said so.
func (m *Model) LoraWorkers(name string) []uint64 { return m.those(m.loras, name) }

// NameWorkers returns the workers whose engines know the model by the name; nil where
// all do, or none has said so.
func (m *Model) NameWorkers(name string) []uint64 {
	if name == m.Space.Model {
		return nil // the name that they have registered
	}
	return m.those(m.served, name)
}

func (m *Model) those(names names, name string) []uint64 {
	at, _ := names.at.Load(name)
	if len(at) == len(m.Engines()) {
		return nil
	}
	return at
}

// names are names, and the workers that have them, ascending.
type names struct {
	at *xsync.MapOf[string, []uint64]
}

func newNames() names { return names{xsync.NewMapOf[string, []uint64]()} }

func (n names) has(name string) bool {
	_, has := n.at.Load(name)
	return has
}

// learn puts the names that a worker has, sorted, in the place of those that it had.
func (n names) learn(worker uint64, was, now []string) {
	for _, name := range was {
		if _, has := slices.BinarySearch(now, name); !has {
			n.at.Compute(name, func(at []uint64, _ bool) ([]uint64, bool) {
				at = slices.DeleteFunc(slices.Clone(at), func(id uint64) bool { return id == worker })
				return at, len(at) == 0
			})
		}
	}
	for _, name := range now {
		n.at.Compute(name, func(at []uint64, _ bool) ([]uint64, bool) {
			i, has := slices.BinarySearch(at, worker)
			if !has {
				at = slices.Insert(slices.Clone(at), i, worker)
			}
			return at, false
		})
	}
}
