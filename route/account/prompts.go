package account

import (
	"slices"
	"sync"

	"github.com/kvatlas/kvatlas/event"
)

// Prompts are the prompts of the last choices that were sampled, as the local hashes of
// their blocks: for who counts how often a prefix is asked for. They are shown to nobody.
// A nil Prompts keeps nothing. Its methods are safe for concurrent use; the mutex is held
// to put one in, and to copy slices out.
type Prompts struct {
	most int // blocks of all

	mu     sync.Mutex
	list   []Prompt // oldest first, from head on
	head   int
	blocks int
}

// Prompt is one of them. It is not changed.
type Prompt struct {
	Space event.Space
	Local []uint64
}

// maxPromptBlocks is how much of a prompt is kept.
const maxPromptBlocks = 4096

// NewPrompts returns one that keeps so many bytes at most.
func NewPrompts(bytes int) *Prompts { return &Prompts{most: max(bytes, 0) / 8} }

// Add keeps a copy of a prompt, and forgets the oldest ones.
func (p *Prompts) Add(sp event.Space, local []uint64) {
	if p == nil || len(local) == 0 {
		return
	}
	local = slices.Clone(local[:min(len(local), maxPromptBlocks)])
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list, p.blocks = append(p.list, Prompt{sp, local}), p.blocks+len(local)
	for p.blocks > p.most || len(p.list)-p.head > maxPrompts {
		p.blocks -= len(p.list[p.head].Local)
		p.list[p.head] = Prompt{}
		p.head++
	}
	if p.head > len(p.list)/2 {
		p.list, p.head = slices.Delete(p.list, 0, p.head), 0
	}
}

// maxPrompts is how many are kept at most.
const maxPrompts = 1024

// Of returns those of a space, oldest first.
func (p *Prompts) Of(sp event.Space) (list []Prompt) {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, x := range p.list[p.head:] {
		if x.Space == sp {
			list = append(list, x)
		}
	}
	return list
}
