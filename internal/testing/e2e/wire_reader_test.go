package e2e

import (
	"fmt"
	"maps"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// wireRank is what the reader knows of a rank: which blocks it holds on the device.
type wireRank struct {
	incarnation, last uint64
	held              map[uint64]bool
	removed           int
}

func (k *wireRank) apply(e *wireEvent) {
	k.last = e.id
	for _, h := range e.engine {
		if e.kind == wireStored {
			k.held[h] = true
		} else if k.held[h] {
			delete(k.held, h)
			k.removed++
		}
	}
	if e.kind == wireCleared {
		clear(k.held)
	}
}

// wireRecover asks a worker's publisher for all that rank 0 holds: a dump, and
// the events after it.
func wireRecover(nc *nats.Conn, subject string) (k wireRank, err error) {
	k.held = map[uint64]bool{}
	request := func(from, dump uint64, part uint32, kind byte) (r wireReader, flags byte, err error) {
		q := le.AppendUint32([]byte("KVR\x01\x01"), 0)
		q = le.AppendUint64(le.AppendUint64(le.AppendUint64(q, from), 0), dump)
		msg, err := nc.Request(subject, le.AppendUint32(q, part), 5*time.Second)
		if err != nil {
			return r, 0, err
		}
		r = wireReader{msg.Data}
		if head := r.take(5); string(head) != "KVR\x01"+string(rune(kind)) {
			return r, 0, fmt.Errorf("the answer is %x", head)
		}
		return r, r.u8(), nil
	}
	var dump []byte
	number := uint64(0)
	for part, parts := uint32(0), uint32(1); part < parts; part++ {
		r, _, err := request(0, number, part, 3)
		if err != nil {
			return k, err
		}
		k.incarnation, k.last, number = r.u64(), r.u64(), r.u64()
		r.u32()
		parts = r.u32()
		dump = append(dump, r.b...)
	}
	for r := (wireReader{dump}); len(r.b) > 0; {
		frame := wireReader{r.take(int(r.u32()))}
		m, err := wireDecode(&wireReader{frame.take(int(frame.u32()))})
		if err != nil {
			return k, err
		}
		for _, e := range m.events {
			for _, h := range e.engine {
				if copies := frame.varint(); copies > 0 && e.tier == 0 {
					k.held[h] = true
				}
			}
		}
	}
	for more := byte(1); more != 0; {
		r, flags, err := request(k.last+1, 0, 0, 2)
		if err != nil {
			return k, err
		}
		if r.take(32); len(r.b) > 0 {
			m, err := wireDecode(&r)
			if err != nil {
				return k, err
			}
			for i := range m.events {
				k.apply(&m.events[i])
			}
		}
		more = flags & 1
	}
	return k, nil
}

// A reader of the stream knows of the mock fleet what its publishers say in
// dumps, and what the indexer says; and every name on the server is in the
// documents.
func TestReaderOfTheDocument(t *testing.T) {
	home := t.TempDir()
	in := startIndexer(t, home, "--snapshot-threshold", "1", "--discover-every", "50ms")
	nc, js := wireConnect(t, filepath.Join(home, "data"))
	names := newWireNames(t, nc, js)
	router, _ := startRouter(t, home)
	startMocker(t, home, "--workers", "2", "--requests", "300", "--speed", "0", "--cache-blocks", "500", "--register", "--at-end", "wait", "--progress", "none")

	var subject string
	eventually(t, time.Minute, func() error {
		for s := range js.ListStreams(t.Context(), jetstream.WithStreamListSubject("kvatlas.default.>")).Info() {
			if m := s.Config.Metadata; m["kvatlas.model"] != "" {
				size, _ := strconv.ParseUint(m["kvatlas.block_size"], 10, 32)
				space := wireSpace{m["kvatlas.model"], m["kvatlas.group"], uint32(size)}.String()
				subject = "kvatlas.default." + space
				if s.Config.Name == "kvatlas_default_"+space && s.Config.Subjects[0] == subject+".*" {
					return nil
				}
			}
		}
		return fmt.Errorf("no stream; the last space is %q", subject)
	})
	consumer, err := js.CreateConsumer(t.Context(), "kvatlas_default_"+strings.TrimPrefix(subject, "kvatlas.default."), jetstream.ConsumerConfig{
		Durable: "replica_wire", DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: 1, AckPolicy: jetstream.AckAllPolicy,
		MaxAckPending: -1, InactiveThreshold: time.Hour, MemoryStorage: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	ranks := map[uint64]*wireRank{}
	eventually(t, 2*time.Minute, func() error {
		batch, err := consumer.FetchNoWait(1000)
		if err != nil {
			return err
		}
		for msg := range batch.Messages() {
			m, err := wireDecode(&wireReader{msg.Data()})
			if err != nil {
				t.Fatal(err)
			}
			if ranks[m.worker] == nil {
				ranks[m.worker] = &wireRank{incarnation: m.incarnation, held: map[uint64]bool{}}
			}
			for i := range m.events {
				if e := &m.events[i]; e.id == ranks[m.worker].last+1 && e.rank == 0 {
					ranks[m.worker].apply(e)
				} else if e.id > ranks[m.worker].last {
					t.Fatalf("event %d follows %d of worker %d, rank %d", e.id, ranks[m.worker].last, m.worker, e.rank)
				}
			}
		}
		if len(ranks) != 2 {
			return fmt.Errorf("%d workers", len(ranks))
		}
		for worker, k := range ranks {
			told, err := wireRecover(nc, fmt.Sprint(subject, ".", worker, ".recover"))
			if err != nil || told.incarnation != k.incarnation || told.last != k.last || k.removed == 0 {
				return fmt.Errorf("worker %d is at event %d, its publisher at %d: %v", worker, k.last, told.last, err)
			}
			if !maps.Equal(told.held, k.held) {
				t.Fatalf("worker %d holds %d blocks, its publisher says %d", worker, len(k.held), len(told.held))
			}
		}
		return nil
	})
	eventually(t, time.Minute, func() error {
		text, err := get(t.Context(), in.url+"/v1/workers")
		for worker, k := range ranks {
			if want := fmt.Sprintf(`"worker_id":"%d"`, worker); !strings.Contains(string(text), want) {
				return fmt.Errorf("no %s: %v", want, err)
			}
			if want := fmt.Sprintf(`"device":%d,`, len(k.held)); !strings.Contains(string(text), want) {
				return fmt.Errorf("no %s in %s", want, text)
			}
		}
		return err
	})
	names.check()
	router.stop()
	in.stop()
}
