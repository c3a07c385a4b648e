package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Position is how far a stream was read: up to a message of it. Sequences alone
// do not say that: a server that lost its last messages, or was restored from a
// backup, gives their numbers to others.
type Position struct {
	Seq     uint64    // of the message; 0: nothing was read
	Created time.Time // of the stream; zero: not known
	Stored  time.Time // when the stream stored the message; zero: not known
}

// Open returns a handle of the stream, and its present state; the error is that
// of Get.
func Open(ctx context.Context, js jetstream.JetStream, name string) (jetstream.Stream, Info, error) {
	s, err := js.Stream(ctx, name)
	if err != nil {
		return nil, Info{}, fmt.Errorf("stream %s: %w", name, err)
	}
	info, err := read(s.CachedInfo())
	return s, info, err
}

// Void says why the stream does not go on from the position; "" if it does. A
// message that the stream has let go cannot be compared: then it goes on, and
// event ids show what is missing.
func Void(ctx context.Context, s jetstream.Stream, info *Info, at Position) (string, error) {
	switch {
	case at.Seq == 0:
		return "", nil
	case !at.Created.IsZero() && !info.Created.Equal(at.Created):
		return "the stream was made again", nil
	case info.LastSeq < at.Seq:
		return fmt.Sprintf("the stream ends before it, at %d", info.LastSeq), nil
	case info.FirstSeq > at.Seq:
		return "", nil
	case at.Stored.IsZero():
		return "nobody noted which message is there", nil
	}
	msg, err := s.GetMsg(ctx, at.Seq)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		// Let go since, or taken out.
		now, err := s.Info(ctx)
		if err != nil {
			return "", fmt.Errorf("stream %s: %w", info.Name, err)
		}
		if now.State.FirstSeq > at.Seq {
			return "", nil
		}
		return "the message there is gone", nil
	case err != nil:
		return "", fmt.Errorf("message %d of stream %s: %w", at.Seq, info.Name, err)
	case !msg.Time.Equal(at.Stored):
		return "it is another message's now", nil
	}
	return "", nil
}
