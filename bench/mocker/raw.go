package mocker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/bench/enginepub"
	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/event"
)

// late is how much later Events are that are WrongLate.
const late = 1500 * time.Millisecond

// raw publishes a worker's events over ZMQ in the bytes of vLLM 0.17, or of 0.33 where the
// model has several cache groups, for kvpublisher to read: a socket, and one for replays, for each of its ranks.
type raw struct {
	size     int
	silent   bool
	delay    time.Duration
	ranks    []*enginepub.Publisher
	delivery sync.WaitGroup

	mu       sync.Mutex
	now, old map[uint64]content // what blocks are, by local hash; bounded by keep
	keep     int

	groups          []event.CacheGroup // none: the model has full attention alone
	names, oldNames map[uint64]named   // of it, by engine hash; bounded likewise
}

// content is what engines tell of a block.
type content struct {
	tokens     []uint32
	lora, salt string
}

// openRaw listens at the endpoints of worker i, counted from 0.
func (c *Config) openRaw(i int) (*raw, error) {
	r := &raw{size: c.Engine.BlockSize, keep: max(2*c.Engine.Blocks, 1<<16), silent: c.HTTP.is(mockapi.WrongSilent), now: map[uint64]content{}, groups: c.Engine.CacheGroups()}
	if r.size == 0 {
		r.size = mock.DefaultBlockSize
	}
	if c.HTTP.is(mockapi.WrongLate) {
		r.delay = late
	}
	for rank := range c.DPRanks {
		n := i*c.DPRanks + rank
		cfg := enginepub.Config{Endpoint: fmt.Sprintf("tcp://%s:%d", c.HTTP.Host, c.HTTP.Events+n), WithTopic: true}
		if c.HTTP.Replay > 0 {
			cfg.Replay = fmt.Sprintf("tcp://%s:%d", c.HTTP.Host, c.HTTP.Replay+n)
		}
		p, err := enginepub.New(cfg)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("see --engine-events and --engine-replays: %w", err), r.Close(context.Background()))
		}
		r.ranks = append(r.ranks, p)
	}
	return r, nil
}

// told remembers what blocks are that may soon be stored.
func (r *raw) told(b *mockapi.Blocks) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.now) > r.keep {
		r.old, r.now = r.now, make(map[uint64]content)
	}
	for i, l := range b.Local {
		r.now[l] = content{b.Tokens[i*r.size : (i+1)*r.size], b.Lora, b.Salt}
	}
}

// content returns what a block is, by its local hash. The caller holds the lock.
func (r *raw) content(local uint64) (c content, ok bool) {
	if c, ok = r.now[local]; !ok {
		c, ok = r.old[local]
	}
	return c, ok
}

// Publish implements Publisher.
func (r *raw) Publish(_ context.Context, ev event.Event) error {
	payload := r.payload(&ev)
	if payload == nil || r.silent {
		return nil
	}
	if r.delay == 0 {
		r.ranks[ev.DPRank].Publish(payload)
		return nil
	}
	r.delivery.Go(func() { // ends after the delay
		time.Sleep(r.delay)
		r.ranks[ev.DPRank].Publish(payload)
	})
	return nil
}

// Flush implements Publisher: nobody acknowledges anything.
func (r *raw) Flush(context.Context) error { return nil }

// Close implements Publisher.
func (r *raw) Close(context.Context) error {
	r.delivery.Wait()
	var err error
	for _, p := range r.ranks {
		err = errors.Join(err, p.Close())
	}
	return err
}

// payload is a batch of one event; nil where its blocks are not known any more, which
// no engine that was told of them meets.
func (r *raw) payload(ev *event.Event) []byte {
	b := msgArray(nil, 3)
	b = binary.BigEndian.AppendUint64(append(b, 0xcb), math.Float64bits(float64(time.Now().UnixNano())/1e9))
	b = msgArray(b, 1)
	switch {
	case ev.Kind != event.Cleared && len(r.groups) > 0:
		if b = r.grouped(b, ev); b == nil {
			return nil
		}
	case ev.Kind == event.Cleared:
		b = msgText(msgArray(b, 1), "AllBlocksCleared")
	case ev.Kind == event.Removed:
		b = msgText(msgHashes(msgText(msgArray(b, 3), "BlockRemoved"), ev.Engine), "GPU")
	case ev.Kind == event.Stored:
		if b = r.stored(b, ev); b == nil {
			return nil
		}
	}
	return msgNumber(b, uint64(ev.DPRank))
}

// stored appends vLLM's BlockStored of nine fields.
func (r *raw) stored(b []byte, ev *event.Event) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := content{}
	tokens := make([]uint32, 0, len(ev.Local)*r.size)
	for i, l := range ev.Local {
		c, ok := r.content(l)
		if !ok {
			return nil
		}
		if i == 0 {
			first = c
		}
		tokens = append(tokens, c.tokens...)
	}
	b = msgHashes(msgText(msgArray(b, 9), "BlockStored"), ev.Engine)
	b = msgParent(b, ev.Parent, ev.HasParent)
	b = msgNumber(msgTokens(b, tokens), uint64(r.size))
	b = msgText(append(b, msgNil), "GPU") // no lora_id
	b = msgLora(b, first.lora)
	keys := make([][]string, len(ev.Local))
	for i := range keys {
		keys[i] = first.keys(i == 0 && !ev.HasParent)
	}
	return msgKeys(b, keys)
}

// keys returns what the hash of a block covers beside its tokens; begins says that it is a
// prompt's first.
func (c *content) keys(begins bool) (keys []string) {
	if c.lora != "" {
		keys = append(keys, c.lora)
	}
	if c.salt != "" && begins {
		keys = append(keys, c.salt)
	}
	return keys
}

const msgNil = 0xc0

func msgArray(b []byte, n int) []byte {
	return binary.BigEndian.AppendUint32(append(b, 0xdd), uint32(n))
}

func msgNumber(b []byte, v uint64) []byte { return binary.BigEndian.AppendUint64(append(b, 0xcf), v) }

func msgText(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(append(b, 0xdb), uint32(len(s))), s...)
}

func msgMap(b []byte, n int) []byte {
	return binary.BigEndian.AppendUint32(append(b, 0xdf), uint32(n))
}

func msgParent(b []byte, parent uint64, has bool) []byte {
	if !has {
		return append(b, msgNil)
	}
	return msgNumber(b, parent)
}

func msgLora(b []byte, name string) []byte {
	if name == "" {
		return append(b, msgNil)
	}
	return msgText(b, name)
}

func msgTokens(b []byte, tokens []uint32) []byte {
	b = msgArray(b, len(tokens))
	for _, t := range tokens {
		b = msgNumber(b, uint64(t))
	}
	return b
}

// msgKeys appends the extra keys of blocks.
func msgKeys(b []byte, keys [][]string) []byte {
	b = msgArray(b, len(keys))
	for _, of := range keys {
		if of == nil {
			b = append(b, msgNil)
			continue
		}
		b = msgArray(b, len(of))
		for _, k := range of {
			b = msgText(b, k)
		}
	}
	return b
}

func msgHashes(b []byte, hashes []uint64) []byte {
	b = msgArray(b, len(hashes))
	for _, h := range hashes {
		b = msgNumber(b, h)
	}
	return b
}
