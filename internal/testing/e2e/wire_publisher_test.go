package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/zeebo/xxh3"
)

// wirePublisher publishes rank 0 of worker 7.
type wirePublisher struct {
	t       *testing.T
	nc      *nats.Conn
	js      jetstream.JetStream
	subject string

	mu          sync.Mutex
	header      wireMessage // without events
	ring        []wireEvent // the last events, without a hole
	last        uint64
	held        []wireEvent // one block each, parents first
	asked, gave string      // the last request and what it was answered with
}

func newWirePublisher(t *testing.T, data string) *wirePublisher {
	p := &wirePublisher{t: t, header: wireMessage{space: wireSpace{"org/wire", "tenant", 4}, worker: 7, incarnation: 9}}
	p.nc, p.js = wireConnect(t, data)
	space := p.header.space.String()
	p.subject = "kvatlas.default." + space + ".7"
	_, err := p.js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "kvatlas_default_" + space, Subjects: []string{"kvatlas.default." + space + ".*"}, Retention: jetstream.LimitsPolicy,
		MaxBytes: 1 << 26, Discard: jetstream.DiscardNew, MaxAge: time.Hour, Storage: jetstream.FileStorage, Duplicates: 2 * time.Minute,
		Metadata: map[string]string{"kvatlas.namespace": "default", "kvatlas.model": "org/wire", "kvatlas.block_size": "4", "kvatlas.group": "tenant"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.nc.Subscribe(p.subject+".recover", p.answer); err != nil {
		t.Fatal(err)
	}
	return p
}

// next makes the event, of one block at most, the rank's next, and publishes it
// unless it is to be lost.
func (p *wirePublisher) next(e wireEvent, lost bool) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	e.id = p.last
	p.ring = append(p.ring, e)
	switch e.kind {
	case wireStored:
		p.held = append(p.held, e)
	case wireRemoved:
		p.held = slices.DeleteFunc(p.held, func(h wireEvent) bool { return h.engine[0] == e.engine[0] })
	case wireCleared:
		p.held = nil
	}
	if lost {
		return
	}
	m := p.header
	m.events = []wireEvent{e}
	msg := nats.NewMsg(p.subject)
	msg.Data = m.encode()
	msg.Header.Set("Nats-Msg-Id", fmt.Sprint(m.incarnation, "-", e.id))
	if _, err := p.js.PublishMsg(p.t.Context(), msg); err != nil {
		p.t.Fatal(err)
	}
}

func (p *wirePublisher) heartbeat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.header
	m.last = map[uint32]uint64{0: p.last}
	if err := p.nc.Publish(p.subject, m.encode()); err != nil {
		p.t.Error(err)
	}
}

// answer gives one event a page, and dumps in parts of ten bytes.
func (p *wirePublisher) answer(msg *nats.Msg) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := wireReader{msg.Data}
	if string(q.take(5)) != "KVR\x01\x01" || len(msg.Data) != 37 {
		p.t.Errorf("a request of %d bytes: %x", len(msg.Data), msg.Data)
		return
	}
	rank, from, _, number, part := q.u32(), q.u64(), q.u64(), q.u64(), q.u32()
	if rank != 0 {
		return // another publisher's
	}
	reply := func(kind, flags byte, number uint64, part, parts int, body []byte) {
		b := append([]byte("KVR\x01"), kind, flags)
		b = le.AppendUint64(le.AppendUint64(le.AppendUint64(b, p.header.incarnation), p.last), number)
		b = le.AppendUint32(le.AppendUint32(b, uint32(part)), uint32(parts))
		p.asked, p.gave = fmt.Sprint("from ", from), fmt.Sprint("kind ", kind)
		if err := msg.Respond(append(b, body...)); err != nil {
			p.t.Error(err)
		}
	}
	first := p.last + 1 - uint64(len(p.ring))
	m := p.header
	switch {
	case number != 0 || from < first:
		var copies []byte
		for _, e := range p.held {
			e.id = 0
			m.events, copies = append(m.events, e), append(copies, 1)
		}
		batch := m.encode()
		frame := le.AppendUint32(nil, uint32(4+len(batch)+len(copies)))
		frame = append(append(le.AppendUint32(frame, uint32(len(batch))), batch...), copies...)
		at := int(part) * 10
		reply(3, 0, 77, int(part), (len(frame)+9)/10, frame[at:min(at+10, len(frame))])
	case from == p.last+1:
		reply(2, 0, 0, 0, 0, nil)
	case from > p.last+1:
		reply(4, 0, 0, 0, 0, nil)
	default:
		m.events = p.ring[from-first:][:1]
		flags := byte(0)
		if from < p.last {
			flags = 1
		}
		reply(2, flags, 0, 0, 0, m.encode())
	}
}

// depth asks the indexer how many blocks of the tokens 0, 1, 2, … it finds.
func (p *wirePublisher) depth(in indexer) (depth int, err error) {
	status, body, _ := ask(in.url+"/v1/find_matches", `{"model":"org/wire","group":"tenant","token_ids":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]}`)
	var answer struct {
		Spaces []struct {
			Workers []struct {
				WorkerID string `json:"worker_id"`
				Longest  int
			}
		}
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil || status != 200 || len(answer.Spaces) != 1 {
		return 0, fmt.Errorf("%d %s", status, body)
	}
	for _, w := range answer.Spaces[0].Workers {
		if w.WorkerID == "7" {
			depth = w.Longest
		}
	}
	return depth, nil
}

// block is the i-th block of the tokens 0, 1, 2, …, called 100+i.
func block(i uint64) wireEvent {
	var tokens []byte
	for t := range uint32(4) {
		tokens = le.AppendUint32(tokens, uint32(4*i)+t)
	}
	return wireEvent{kind: wireStored, hasParent: i > 0, parent: 99 + i, engine: []uint64{100 + i}, local: []uint64{xxh3.HashSeed(tokens, 1337)}}
}

func TestPublisherOfTheDocument(t *testing.T) {
	home := t.TempDir()
	in := startIndexer(t, home)
	p := newWirePublisher(t, filepath.Join(home, "data"))
	found := func(want int, asked, gave string) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			p.mu.Lock()
			defer p.mu.Unlock()
			if depth, err := p.depth(in); err != nil || depth != want || p.asked != asked || p.gave != gave {
				return fmt.Errorf("%d blocks are found instead of %d; asked %q, gave %q: %v", depth, want, p.asked, p.gave, err)
			}
			return nil
		})
	}
	bucket, err := p.js.KeyValue(t.Context(), "kvatlas_default_registry")
	if err != nil {
		t.Fatal(err)
	}
	key := "lease." + p.header.space.String() + ".7"
	_, err = bucket.PutString(t.Context(), key, `{"v":1,"worker_id":"7","model":"org/wire","block_size":4,"group":"tenant","transport":"jetstream",
		"incarnation":"9","lease_ms":3600000,"announcer":"1"}`)
	if err != nil {
		t.Fatal(err)
	}
	p.next(block(0), false)
	p.next(block(1), false)
	found(2, "", "")

	p.next(block(2), true)
	p.next(block(3), false)
	p.heartbeat()
	found(4, "from 4", "kind 2") // the lost one, and what follows
	p.next(wireEvent{kind: wireRemoved, engine: []uint64{103}}, false)
	found(3, "from 4", "kind 2")

	p.mu.Lock() // another run of the engine, which holds as much; the events are forgotten
	p.header.incarnation, p.ring = 10, nil
	p.mu.Unlock()
	p.heartbeat()
	found(3, "from 6", "kind 2") // a dump, and nothing follows
	p.next(wireEvent{kind: wireCleared}, false)
	found(0, "from 6", "kind 2")
	p.next(block(0), false)
	found(1, "from 6", "kind 2")

	if err := bucket.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	found(0, "from 6", "kind 2")
	in.stop()
}
