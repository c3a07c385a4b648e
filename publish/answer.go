package publish

import (
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
)

// maxAsked bounds the requests that wait for their answer; whoever finds no
// room is not answered and asks again.
const maxAsked = 256

// answer begins to answer replicas that missed something. The subscription's
// goroutine answers one request after the other.
func (p *Publisher) answer() error {
	sub, err := p.cfg.Conn.Subscribe(stream.RecoverSubject(p.cfg.Namespace, p.cfg.Space, p.cfg.Worker), func(msg *nats.Msg) {
		data, kind := p.source.Answer(msg.Data, int(p.cfg.Conn.MaxPayload())-headerRoom)
		if data == nil {
			return // another publisher's rank
		}
		p.m.answered(kind, len(data))
		_ = msg.Respond(data) // whoever hears nothing asks again
	})
	if err == nil {
		p.asked = sub
		err = sub.SetPendingLimits(maxAsked, -1)
	}
	if err != nil {
		return fmt.Errorf("subscribing to recovery requests: %w", err)
	}
	return nil
}
