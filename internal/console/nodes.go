package console

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// node is a place in the tree of what a space holds; that without a path is the root.
type node struct {
	space event.Space
	path  []core.Step
	joins bool // its last step stands for a rest of a run: see core.Branch
}

// below returns the node of a branch that follows.
func (n *node) below(b *core.Branch) node {
	if b.Joins && n.joins {
		return node{n.space, append(slices.Clone(n.path[:len(n.path)-1]), b.Step), true}
	}
	return node{n.space, append(slices.Clone(n.path), b.Step), b.Joins}
}

// nodes knows which node an id stands for, of those that were named of late. An id is made
// of hashes with a key that nobody has outside of this process: nothing of them can be
// learnt from it, and equal prefixes of two processes have nothing in common. The mutex is
// held to look one up, or to add one.
type nodes struct {
	key []byte

	mu         sync.Mutex
	now, older map[string]node
	steps      int // of now
}

const (
	// maxNodes and maxSteps bound each half of what is known: nodes, and what their paths
	// have together.
	maxNodes = 8192
	maxSteps = 1 << 18
)

func newNodes() *nodes {
	n := &nodes{key: make([]byte, 32), now: make(map[string]node)}
	_, _ = rand.Read(n.key) // never fails
	return n
}

// name returns the node's id.
func (t *nodes) name(n node) string {
	h := hmac.New(sha256.New, t.key)
	fmt.Fprintf(h, "%q %d %q", n.space.Model, n.space.BlockSize, n.space.Group) //nolint:errcheck // a hash takes all
	var b [12]byte
	for _, s := range n.path {
		binary.LittleEndian.PutUint32(b[:], s.Depth)
		binary.LittleEndian.PutUint64(b[4:], s.First)
		h.Write(b[:])
	}
	id := hex.EncodeToString(h.Sum(nil)[:10])
	t.mu.Lock()
	defer t.mu.Unlock()
	t.add(id, n)
	return id
}

// add keeps a node. t.mu is held.
func (t *nodes) add(id string, n node) {
	if _, ok := t.now[id]; ok {
		return
	}
	if len(t.now) >= maxNodes || t.steps+len(n.path) > maxSteps {
		t.now, t.older, t.steps = make(map[string]node), t.now, 0
	}
	t.now[id] = n
	t.steps += len(n.path)
}

// find returns the node of an id.
func (t *nodes) find(id string) (node, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, ok := t.now[id]
	if !ok {
		if n, ok = t.older[id]; ok {
			t.add(id, n) // it is of use
		}
	}
	return n, ok
}
