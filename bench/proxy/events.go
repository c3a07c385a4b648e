package main

import (
	"encoding/binary"
	"math"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/bench/enginepub"
)

const (
	blockSize  = 16 // tokens
	blockBytes = blockSize * bytesPerToken
	// cacheBlocks is how many blocks an engine holds, unless it is said; the oldest make room.
	cacheBlocks = 1 << 16
	// step is how often an engine publishes, as real ones do at the end of their steps.
	step = 10 * time.Millisecond
)

// events is an engine's cache, and what is published of it: vLLM's batches.
type events struct {
	blocks    int                   // it holds at most
	token     func(b []byte) uint32 // of a prompt's next four bytes
	publisher *enginepub.Publisher
	stop      chan struct{}
	done      chan struct{}

	mu   sync.Mutex
	held map[uint64]struct{}
	ring []uint64 // those held, the oldest at next
	next int
	out  []byte // events of this step
	n    uint32
}

func newEvents(blocks int, token func(b []byte) uint32) (*events, error) {
	p, err := enginepub.New(enginepub.Config{Endpoint: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", WithTopic: true})
	if err != nil {
		return nil, err
	}
	e := &events{blocks: blocks, token: token, publisher: p, held: map[uint64]struct{}{}, stop: make(chan struct{}), done: make(chan struct{})}
	go e.run() // ends with close
	return e, nil
}

func (e *events) close() error {
	close(e.stop)
	<-e.done
	return e.publisher.Close()
}

func (e *events) run() {
	defer close(e.done)
	tick := time.NewTicker(step)
	defer tick.Stop()
	for {
		select {
		case <-e.stop:
			return
		case <-tick.C:
			e.publish()
		}
	}
}

// publish sends what happened since the last time.
func (e *events) publish() {
	if b := e.payload(); b != nil {
		e.publisher.Publish(b)
	}
}

// payload returns what is to be published; nil for nothing.
func (e *events) payload() []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.n == 0 {
		return nil
	}
	b := binary.BigEndian.AppendUint64([]byte{0x93, 0xcb}, math.Float64bits(float64(time.Now().UnixNano())/1e9))
	b = append(binary.BigEndian.AppendUint32(append(b, 0xdd), e.n), e.out...)
	b = append(b, 0) // the rank
	e.out, e.n = e.out[:0], 0
	return b
}

// holds notes that the engine has computed a prompt, which is its body or its tokens.
func (e *events) holds(body []byte) {
	hashes := make([]uint64, 0, len(body)/blockBytes)
	h := uint64(0)
	for at := 0; at+blockBytes <= len(body); at += blockBytes {
		h = xxh3.HashSeed(body[at:at+blockBytes], h)
		hashes = append(hashes, h)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	first := len(hashes) // of those that are new, which are all that follow
	for first > 0 {
		if _, ok := e.held[hashes[first-1]]; ok {
			break
		}
		first--
	}
	if first == len(hashes) {
		return
	}
	e.stored(hashes, body, first)
	for _, h := range hashes[first:] {
		e.held[h] = struct{}{}
		switch {
		case first == 0: // the prompt that all share stays
		case len(e.ring) < e.blocks:
			e.ring = append(e.ring, h)
		default:
			old := e.ring[e.next]
			e.ring[e.next] = h
			e.next = (e.next + 1) % len(e.ring)
			delete(e.held, old)
			e.removed(old)
		}
	}
}

// stored writes ["BlockStored", hashes, parent, tokens, block size, nil, nil].
func (e *events) stored(hashes []uint64, body []byte, first int) {
	e.n++
	b := append(append(e.out, 0x97, 0xab), "BlockStored"...)
	b = binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(len(hashes)-first))
	for _, h := range hashes[first:] {
		b = binary.BigEndian.AppendUint64(append(b, 0xcf), h)
	}
	if first > 0 {
		b = binary.BigEndian.AppendUint64(append(b, 0xcf), hashes[first-1])
	} else {
		b = append(b, 0xc0)
	}
	b = binary.BigEndian.AppendUint32(append(b, 0xdd), uint32((len(hashes)-first)*blockSize))
	for at := first * blockBytes; at < len(hashes)*blockBytes; at += bytesPerToken {
		b = binary.BigEndian.AppendUint32(append(b, 0xce), e.token(body[at:]))
	}
	e.out = append(b, blockSize, 0xc0, 0xc0)
}

// removed writes ["BlockRemoved", hashes, nil].
func (e *events) removed(hash uint64) {
	e.n++
	b := append(append(e.out, 0x93, 0xac), "BlockRemoved"...)
	e.out = append(binary.BigEndian.AppendUint64(append(b, 0x91, 0xcf), hash), 0xc0)
}
