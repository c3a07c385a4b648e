package enginepub

import (
	"encoding/binary"
	"fmt"
	"net"

	"github.com/kvatlas/kvatlas/internal/engines/zmtp"
)

// Form is how an engine gives snapshots, and its process names itself.
type Form uint8

// The forms.
const (
	VLLM   Form = iota // as of vllm#57789: behind each number 16 bytes of name; one message
	SGLang             // as of sglang#34407: behind each topic the name; a header, pages, an end
)

// SnapshotEndpoint returns where to ask for snapshots, or "".
func (p *Publisher) SnapshotEndpoint() string {
	if p.shots == nil {
		return ""
	}
	return endpoint(p.shots)
}

// named appends a live message's first two frames to theirs.
func (p *Publisher) named(topic, seq []byte, e entry) (_, _ []byte) {
	topic, seq = append(topic, p.cfg.Topic...), binary.BigEndian.AppendUint64(seq, e.seq)
	switch {
	case p.shots == nil:
	case p.cfg.Form == SGLang:
		topic = append(topic, "\x00sgl-kv-epoch="+p.cfg.Process...)
		if e.barrier != "" {
			topic = append(topic, "\x00sgl-kv-snapshot="+e.barrier...)
		}
	default:
		seq = append(seq, p.name()...)
	}
	return topic, seq
}

// name returns the process's name in vLLM's 16 bytes.
func (p *Publisher) name() []byte { return fmt.Appendf(nil, "%-16.16s", p.cfg.Process) }

// snapshots answers one DEALER's requests.
func (p *Publisher) snapshots(_ net.Conn, c *zmtp.Conn) {
	var m zmtp.Message
	for c.ReadMessage(&m) == nil {
		if m.Len() != 2 || len(m.Frame(0)) != 0 {
			continue
		}
		for _, frames := range p.snapshot(string(m.Frame(1))) {
			if c.WriteMessage(append([][]byte{nil}, frames...)...) != nil {
				return
			}
		}
	}
}

// snapshot returns the messages of an answer.
func (p *Publisher) snapshot(words string) [][][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cfg.Form == SGLang && words != "snapshot-v1" {
		return [][][]byte{{[]byte("error"), []byte("invalid snapshot-v1 request")}}
	}
	pages, err := p.cfg.Take(p.next)
	if p.cfg.Form == VLLM {
		last := p.next - 1
		if err != nil {
			last, pages = 1<<64-2, nil
		}
		return [][][]byte{append([][]byte{binary.BigEndian.AppendUint64(nil, last), p.name()}, pages...)}
	}
	if err != nil {
		return [][][]byte{{[]byte("error"), []byte(err.Error())}}
	}
	// The batch that ends the snapshot is empty, and comes live.
	at := p.publishLocked([]byte{0x93, 0x00, 0x90, 0x00}, "b")
	head := append([]byte{0x97, 1, 0xd9, byte(len(p.cfg.Process))}, p.cfg.Process...)
	head = append(append(head, 0, 0xcf), binary.BigEndian.AppendUint64(nil, at+1)...)
	head = append(append(head, 0xcf), binary.BigEndian.AppendUint64(nil, at)...)
	blocks := 0
	all := [][][]byte{nil}
	for _, page := range pages {
		blocks += int(binary.BigEndian.Uint32(page[1:])) // an array 32
		all = append(all, [][]byte{[]byte("chunk"), page})
	}
	head = append(append(head, 0xa1, 'b', 0xce), binary.BigEndian.AppendUint32(nil, uint32(blocks))...)
	all[0] = [][]byte{[]byte("header"), head}
	return append(all, [][]byte{[]byte("end"), nil})
}
