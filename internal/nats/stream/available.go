package stream

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// Explain says of an error of JetStream what to do where there is none, and where nobody answers in time. A
// server that has it answers from the first connection on, so that waiting would not help.
func Explain(err error) error {
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) {
		return conf.Wrong{Err: fmt.Errorf("the NATS server has no JetStream, or not for this account: start it with -js or \"jetstream {}\" in its file, or give another address: %w", err)}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("NATS does not answer in time: %s: %w", obs.SeeCluster, err)
	}
	return err
}

// Unavailable reports whether the server answered that it cannot answer: without a quorum, or still starting.
func Unavailable(err error) bool {
	var api *jetstream.APIError
	var old *nats.APIError // of what its other package asks
	return errors.As(err, &api) && api.Code == 503 || errors.As(err, &old) && old.Code == 503
}

// Unanswered reports whether the server did not answer in time, or as Unavailable says.
func Unanswered(err error) bool {
	return Unavailable(err) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, context.DeadlineExceeded)
}

// Available returns an error if there is no JetStream; any other is not looked for. It asks
// of the space's stream, for which every publisher has the permission.
func Available(ctx context.Context, nc *nats.Conn, ns string, sp event.Space) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("stream: %w", err)
	}
	_, err = js.Stream(ctx, Name(ns, sp))
	if err = Explain(err); errors.As(err, new(conf.Wrong)) {
		return err
	}
	return nil
}
