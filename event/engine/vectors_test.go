package engine

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
)

// published is the time in every payload of the test data.
const published = 1700000000.25 * 1e9

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func newDecoder(t testing.TB, cfg Config) *Decoder {
	t.Helper()
	d, err := NewDecoder(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// local returns the local hashes of the tokens in blocks of 4.
func local(t testing.TB, seed uint64, tokens ...uint32) []uint64 {
	t.Helper()
	l, err := blockhash.LocalHashes(nil, tokens, 4, blockhash.Options{Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// check compares what a payload decodes to.
func check(t *testing.T, d *Decoder, payload []byte, wantTime int64, want ...event.Event) {
	t.Helper()
	got, err := d.Decode(payload)
	if err != nil {
		t.Error(err)
		return
	}
	if got.Published != wantTime || !got.CountCopies {
		t.Errorf("published %d, copies counted %v", got.Published, got.CountCopies)
	}
	if a, b := fmt.Sprintf("%+v", got.Events), fmt.Sprintf("%+v", want); a != b {
		t.Errorf("events %s\nwant   %s", a, b)
	}
}

// engineHash is a hash in the test data: an integer of either sign, or bytes.
type engineHash uint64

func (h *engineHash) UnmarshalJSON(b []byte) error {
	var digest struct{ Bytes string }
	if b[0] == '{' {
		if err := json.Unmarshal(b, &digest); err != nil {
			return err
		}
		_, err := fmt.Sscanf(digest.Bytes[len(digest.Bytes)-16:], "%x", h)
		return err
	}
	if b[0] == '-' {
		var v int64
		err := json.Unmarshal(b, &v)
		*h = engineHash(v)
		return err
	}
	return json.Unmarshal(b, (*uint64)(h))
}

func hashes(in []engineHash) (out []uint64) {
	for _, h := range in {
		out = append(out, uint64(h))
	}
	return out
}

// engineEvent is an event that an engine's publisher was given.
type engineEvent struct {
	Stored *struct {
		Hashes    []engineHash
		Parent    *engineHash
		Tokens    []uint32
		BlockSize int `json:"block_size"`
		Lora      string
		Salt      string
		Medium    string
		Group     int
	}
	Removed *struct {
		Hashes []engineHash
		Medium string
	}
}

// want returns the event as kvatlas says it, or none if it is to be left out.
func (e *engineEvent) want(t *testing.T) []event.Event {
	tier := func(medium string) event.Tier {
		if medium == "CPU" {
			return event.HostPinned
		}
		return event.Device
	}
	switch {
	case e.Stored != nil && e.Stored.Group != 0:
		return []event.Event{{Kind: event.Stored, Group: uint8(e.Stored.Group + 1), Engine: hashes(e.Stored.Hashes)}}
	case e.Stored != nil:
		s := e.Stored
		ev := event.Event{Kind: event.Stored, Tier: tier(s.Medium), Engine: hashes(s.Hashes), Local: local(t, blockhash.Seed(s.Lora, s.Salt), s.Tokens...)}
		if s.Parent != nil {
			ev.HasParent, ev.Parent = true, uint64(*s.Parent)
		}
		return []event.Event{ev}
	case e.Removed != nil:
		return []event.Event{{Kind: event.Removed, Tier: tier(e.Removed.Medium), Engine: hashes(e.Removed.Hashes)}}
	}
	return []event.Event{{Kind: event.Cleared, AllTiers: true}}
}

func TestWhatEnginesPublish(t *testing.T) {
	data, err := os.ReadFile("testdata/engine-events.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); lines++ {
		var c struct {
			Engine, Case, Payload string
			Rank                  uint32
			Events                []json.RawMessage
		}
		if err := json.Unmarshal(s.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		t.Run(c.Engine+" "+c.Case, func(t *testing.T) {
			var want []event.Event
			for _, raw := range c.Events {
				var e engineEvent
				if string(raw) != `"cleared"` {
					if err := json.Unmarshal(raw, &e); err != nil {
						t.Fatal(err)
					}
				}
				want = append(want, e.want(t)...)
			}
			for i := range want {
				want[i].DPRank = c.Rank
			}
			d := newDecoder(t, Config{BlockSize: 4, Rank: 9})
			check(t, d, unhex(t, c.Payload), published, want...)
			if d.Stats() != (Stats{}) {
				t.Errorf("left out %v", d.Stats())
			}
		})
	}
	if lines != 87 {
		t.Errorf("%d lines, want 87", lines)
	}
}

// layouts returns the payloads of testdata/layouts.jsonl by name.
func layouts(t testing.TB) map[string][]byte {
	t.Helper()
	data, err := os.ReadFile("testdata/layouts.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
		var c struct{ Name, Payload string }
		if err := json.Unmarshal(s.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		out[c.Name] = unhex(t, c.Payload)
	}
	return out
}

func TestTruncatedAtEveryOffset(t *testing.T) {
	for name, payload := range layouts(t) {
		d := newDecoder(t, Config{BlockSize: 4})
		for n := range payload {
			if got, err := d.Decode(payload[:n]); !errors.Is(err, event.ErrTruncated) {
				t.Errorf("%s, first %d bytes: %+v, %v", name, n, got, err)
			}
		}
		if d.Stats() != (Stats{}) {
			t.Errorf("%s: truncated payloads count as %v", name, d.Stats())
		}
	}
}

func TestFlippedBitsDoNotPanic(t *testing.T) {
	for _, payload := range layouts(t) {
		d := newDecoder(t, Config{BlockSize: 4})
		for i := range 8 * len(payload) {
			payload[i/8] ^= 1 << (i % 8)
			if got, err := d.Decode(payload); err == nil {
				got.Space.BlockSize = 4
				if err := got.Check(); err != nil {
					t.Fatalf("bit %d: %v", i, err)
				}
			}
			payload[i/8] ^= 1 << (i % 8)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, payload := range layouts(f) {
		f.Add(payload)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		d := newDecoder(t, Config{BlockSize: 4, MaxChains: 4})
		for range 2 { // the second time with what the first one left
			got, err := d.Decode(payload)
			if err != nil {
				return
			}
			got.Space.BlockSize = 4
			if err := got.Check(); err != nil {
				t.Fatalf("%v: %+v", err, got)
			}
			if got.Blocks() > len(payload) {
				t.Fatalf("%d blocks from %d bytes", got.Blocks(), len(payload))
			}
		}
	})
}
