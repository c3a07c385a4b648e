package stream

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"
)

// Newest returns the last message of a subject as the stream's leader has it. Of buckets the
// client asks whichever server of a cluster has a copy, and one that is behind answers with what
// was: with an older value, or none.
func Newest(ctx context.Context, js jetstream.JetStream, name, subject string) (*jetstream.RawStreamMsg, error) {
	s, err := js.Stream(ctx, name)
	if err != nil {
		return nil, err
	}
	s.CachedInfo().Config.AllowDirect = false // of this handle alone: it asks the leader then
	return s.GetLastMsgForSubject(ctx, subject)
}
