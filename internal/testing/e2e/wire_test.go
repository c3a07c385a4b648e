package e2e

// The files wire*_test.go are a publisher and a reader that were written from
// docs/wire-format.md and docs/stored-format.md alone: they import no package of
// this module.

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/zeebo/xxh3"
)

var le = binary.LittleEndian

// wireSpace is a space of the namespace default.
type wireSpace struct {
	model, group string
	blockSize    uint32
}

func (s wireSpace) String() string {
	b := le.AppendUint64(le.AppendUint32(nil, s.blockSize), uint64(len(s.model)))
	b = append(append(b, s.model...), s.group...)
	readable := regexp.MustCompile(`[^a-zA-Z0-9_-]`).ReplaceAllString(s.model[:min(48, len(s.model))], "_")
	return fmt.Sprintf("%s-b%d-%016x", readable, s.blockSize, xxh3.Hash(b))
}

const (
	wireStored  = 1
	wireRemoved = 2
	wireCleared = 3
)

type wireEvent struct {
	kind, tier            byte
	hasParent, incomplete bool
	rank                  uint32
	id, parent            uint64
	engine, local         []uint64
}

// wireMessage is a batch or a heartbeat.
type wireMessage struct {
	space               wireSpace
	worker, incarnation uint64
	events              []wireEvent
	last                map[uint32]uint64 // of a heartbeat
}

func (m *wireMessage) encode() []byte {
	kind, n := byte(1), len(m.events)
	if m.last != nil {
		kind, n = 2, len(m.last)
	}
	b := append([]byte("KVA\x01"), kind, 0)
	b = le.AppendUint16(b, uint16(m.space.blockSize))
	b = le.AppendUint64(le.AppendUint64(b, m.worker), m.incarnation)
	b = le.AppendUint64(b, uint64(time.Now().UnixNano()))
	for _, name := range []string{m.space.model, m.space.group} {
		b = append(binary.AppendUvarint(b, uint64(len(name))), name...)
	}
	b = le.AppendUint32(b, uint32(n))
	for rank, id := range m.last {
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(rank)), id)
	}
	before := uint64(0)
	for _, e := range m.events {
		head := e.kind | e.tier<<2
		if e.hasParent {
			head |= 1 << 4
		}
		if e.kind == wireCleared {
			head |= 1 << 5
		}
		if len(e.local) > 0 {
			head |= 1 << 6
		}
		b = binary.AppendUvarint(append(b, head), uint64(e.rank))
		b = binary.AppendUvarint(binary.AppendUvarint(b, e.id-before), uint64(len(e.engine)))
		before = e.id
		if e.hasParent {
			b = le.AppendUint64(b, e.parent)
		}
		for _, hashes := range [][]uint64{e.engine, e.local} {
			for _, h := range hashes {
				b = le.AppendUint64(b, h)
			}
		}
	}
	return b
}

// wireReader takes numbers off the front of bytes; it panics where they end.
type wireReader struct{ b []byte }

func (r *wireReader) take(n int) []byte {
	head := r.b[:n]
	r.b = r.b[n:]
	return head
}
func (r *wireReader) u8() byte    { return r.take(1)[0] }
func (r *wireReader) u32() uint32 { return le.Uint32(r.take(4)) }
func (r *wireReader) u64() uint64 { return le.Uint64(r.take(8)) }
func (r *wireReader) varint() uint64 {
	v, n := binary.Uvarint(r.b)
	r.take(n)
	return v
}

func (r *wireReader) hashes(n uint64) (list []uint64) {
	for range n {
		list = append(list, r.u64())
	}
	return list
}

// wireDecode decodes a native message with everything that follows in r.
func wireDecode(r *wireReader) (m wireMessage, err error) {
	if string(r.take(4)) != "KVA\x01" {
		return m, errors.New("no native message of version 1")
	}
	kind, flags := r.u8(), r.u8()
	m.space.blockSize = uint32(le.Uint16(r.take(2)))
	m.worker, m.incarnation = r.u64(), r.u64()
	r.u64() // the time
	m.space.model = string(r.take(int(r.varint())))
	m.space.group = string(r.take(int(r.varint())))
	n := r.u32()
	if kind == 2 {
		m.last = map[uint32]uint64{}
		for range n {
			m.last[uint32(r.varint())] = r.varint()
			if flags&2 != 0 {
				r.u8()
			}
		}
		return m, nil
	}
	id := uint64(0)
	for range n {
		head := r.u8()
		e := wireEvent{kind: head & 3, tier: head >> 2 & 3, hasParent: head&(1<<4) != 0, incomplete: head&(1<<7) != 0, rank: uint32(r.varint())}
		id += r.varint()
		e.id = id
		blocks := r.varint()
		if e.hasParent {
			e.parent = r.u64()
		}
		e.engine = r.hashes(blocks)
		if head&(1<<6) != 0 {
			e.local = r.hashes(blocks)
		}
		m.events = append(m.events, e)
	}
	return m, nil
}

// wireConnect joins the embedded server of a data directory.
func wireConnect(t *testing.T, data string) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	address, err := os.ReadFile(filepath.Join(data, "address"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(data, "credentials.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cred struct{ User, Password string }
	if err := json.Unmarshal(text, &cred); err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect("nats://"+strings.TrimSpace(string(address)), nats.UserInfo(cred.User, cred.Password))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}
