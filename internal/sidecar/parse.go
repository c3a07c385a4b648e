package sidecar

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
)

// errNoNumber is wrapped by the error for a line without a number: what it is
// cannot be told, so its connection ends.
var errNoNumber = errors.New("no message with a seq")

// hash is an engine's block hash: a whole number of 64 bits, signed or not, or
// the same as a text.
type hash uint64

// UnmarshalJSON implements json.Unmarshaler.
func (h *hash) UnmarshalJSON(b []byte) error {
	text := string(b)
	if len(b) > 1 && b[0] == '"' {
		text = text[1 : len(text)-1]
	}
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		*h = hash(n)
		return nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return fmt.Errorf("hash %.40s is no whole number of 64 bits", b)
	}
	*h = hash(n)
	return nil
}

// message is a line after the hello.
type message struct {
	Type        string   `json:"type"`
	Seq         *uint64  `json:"seq"`
	Tier        string   `json:"tier"`
	Parent      *hash    `json:"parent"`
	Hashes      []hash   `json:"hashes"`
	Tokens      []uint32 `json:"tokens"`
	LocalHashes []hash   `json:"local_hashes"`
	LoRA        string   `json:"lora"`
	Salt        string   `json:"salt"`
}

// parser reads the lines of one connection.
type parser struct {
	blockSize int
	dpRank    uint32
}

// parse returns a line's number and event. The event lives for ever.
func (p *parser) parse(line []byte) (uint64, event.Event, error) {
	var m message
	err := json.Unmarshal(line, &m)
	if m.Seq == nil || *m.Seq == math.MaxUint64 {
		if err == nil {
			err = errors.New("the line has none, or the largest there is")
		}
		return 0, event.Event{}, fmt.Errorf("%w: %w", errNoNumber, err)
	}
	if err == nil {
		var ev event.Event
		if ev, err = p.event(&m); err == nil {
			return *m.Seq, ev, nil
		}
	}
	return *m.Seq, event.Event{}, fmt.Errorf("message %d: %w", *m.Seq, err)
}

func (p *parser) event(m *message) (event.Event, error) {
	ev := event.Event{DPRank: p.dpRank, Engine: hashes(m.Hashes)}
	ok := m.Tier == ""
	if !ok {
		ev.Tier, ok = event.ParseTier([]byte(m.Tier))
	}
	if !ok {
		return ev, fmt.Errorf("tier %q is not known", m.Tier)
	}
	switch m.Type {
	case "stored":
		ev.Kind = event.Stored
		if m.Parent != nil {
			ev.HasParent, ev.Parent = true, uint64(*m.Parent)
		}
		return ev, p.content(m, &ev)
	case "removed":
		ev.Kind = event.Removed
		if len(ev.Engine) == 0 {
			return ev, errors.New("removed without hashes")
		}
		return ev, nil
	case "cleared":
		return event.Event{Kind: event.Cleared, DPRank: p.dpRank, Tier: ev.Tier, AllTiers: m.Tier == ""}, nil
	}
	return ev, fmt.Errorf("type %q is not stored, removed or cleared", m.Type)
}

// content fills in the local hashes of a store.
func (p *parser) content(m *message, ev *event.Event) error {
	n := len(ev.Engine)
	switch {
	case n == 0:
		return errors.New("stored without hashes")
	case len(m.Tokens) > 0 && len(m.LocalHashes) > 0:
		return errors.New("give tokens or local_hashes, not both")
	case len(m.Tokens) > 0:
		if len(m.Tokens) != n*p.blockSize {
			return fmt.Errorf("%d tokens of %d blocks of %d tokens", len(m.Tokens), n, p.blockSize)
		}
		seed := blockhash.Seed(m.LoRA, m.Salt)
		for i := range n {
			ev.Local = append(ev.Local, blockhash.LocalHash(m.Tokens[i*p.blockSize:(i+1)*p.blockSize], seed, nil))
		}
	case len(m.LocalHashes) > 0:
		if len(m.LocalHashes) != n {
			return fmt.Errorf("%d local hashes of %d blocks", len(m.LocalHashes), n)
		}
		ev.Local = hashes(m.LocalHashes)
	default: // known by its hash
		ev.HasParent, ev.Parent = false, 0
	}
	return nil
}

func hashes(list []hash) []uint64 {
	if len(list) == 0 {
		return nil
	}
	out := make([]uint64, len(list))
	for i, h := range list {
		out[i] = uint64(h)
	}
	return out
}
