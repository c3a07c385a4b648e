package engine

import "github.com/kvatlas/kvatlas/blockhash"

// chain is what a stored block hands down to its children, besides its place.
// Engines name a salt at a chain's first block only.
type chain struct {
	lora, salt uint64 // what each adds to the seed of local hashes; 0 for none
	left       bool   // the block was left out, so its children must be
}

// seed returns the seed of the chain's local hashes.
func (c chain) seed() uint64 { return plainSeed() + c.lora + c.salt }

func plainSeed() uint64 { return blockhash.Seed("", "") }

// chains remembers the chains of stored blocks by engine hash: only of blocks
// whose children need it, so nothing in a fleet without LoRA and salts. It
// holds the limit blocks stored or used last, and at most twice as many; a
// child of a block that is forgotten would be taken for plain content.
type chains struct {
	limit    int
	usual    chain            // of blocks that are not remembered
	now, old map[uint64]chain // a block is in one of them
}

func (c *chains) empty() bool { return len(c.now) == 0 && len(c.old) == 0 }

// get returns the chain of the block, the usual one if it is not remembered.
func (c *chains) get(block uint64) chain {
	if st, ok := c.now[block]; ok {
		return st
	}
	if st, ok := c.old[block]; ok {
		c.put(block, st) // in use
		return st
	}
	return c.usual
}

// put remembers the block's chain, or forgets it if it is the usual one.
func (c *chains) put(block uint64, st chain) {
	if st == c.usual {
		if !c.empty() {
			delete(c.now, block)
			delete(c.old, block)
		}
		return
	}
	delete(c.old, block)
	if len(c.now) >= c.limit {
		clear(c.old)
		c.now, c.old = c.old, c.now
	}
	if c.now == nil {
		c.now = make(map[uint64]chain)
	}
	c.now[block] = st
}

// addends remembers what names add to the seed of local hashes, so that a name
// that comes again costs no allocation. It starts over at maxAddends, and remembers none of more than
// maxName bytes.
type addends struct{ byName map[string]uint64 }

const (
	maxAddends = 4096
	maxName    = 256
)

func (a *addends) get(name []byte, of func(string) uint64) uint64 {
	if v, ok := a.byName[string(name)]; ok {
		return v
	}
	if len(name) > maxName {
		return of(string(name))
	}
	if a.byName == nil || len(a.byName) >= maxAddends {
		a.byName = make(map[string]uint64)
	}
	s := string(name)
	v := of(s)
	a.byName[s] = v
	return v
}

func seedOfLora(name string) uint64 { return blockhash.Seed(name, "") - plainSeed() }
func seedOfSalt(salt string) uint64 { return blockhash.Seed("", salt) - plainSeed() }
