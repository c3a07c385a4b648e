package stream

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/nats-io/nats.go/jetstream"
)

// Objects are those of a bucket, as the leader of its stream has them: the client asks whichever server of a
// cluster has a copy, and takes what one that is behind has of an object for all of it.
type Objects struct {
	js     jetstream.JetStream
	bucket string
}

// NewObjects returns those of a bucket.
func NewObjects(js jetstream.JetStream, bucket string) Objects { return Objects{js, bucket} }

// ErrLost is of an object of which the server has lost a part.
var ErrLost = errors.New("a part of it is lost")

const pullChunks = 64 // asked for at a time

// Read writes the object to w. The error wraps jetstream.ErrObjectNotFound or ErrLost if it is not there, or not
// all of it.
func (s Objects) Read(ctx context.Context, object string, w io.Writer) (int64, error) {
	o, err := s.whole(ctx, object)
	if err != nil || o.Chunks == 0 {
		return 0, err
	}
	c, err := s.js.OrderedConsumer(ctx, s.stream(), jetstream.OrderedConsumerConfig{FilterSubjects: []string{s.ChunkSubject(o.NUID)}})
	if err != nil {
		return 0, err
	}
	defer func() { _ = s.js.DeleteConsumer(ctx, s.stream(), c.CachedInfo().Name) }() // else it goes by itself in five minutes
	it, err := c.Messages(jetstream.PullMaxMessages(pullChunks))
	if err != nil {
		return 0, err
	}
	defer it.Stop()
	defer context.AfterFunc(ctx, it.Stop)() // of its own it tries for ever to have a consumer again
	var n int64
	for range o.Chunks {
		m, err := it.Next(jetstream.NextContext(ctx))
		if err != nil {
			return n, cmp.Or(ctx.Err(), err)
		}
		written, err := w.Write(m.Data())
		if n += int64(written); err != nil {
			return n, err
		}
	}
	if uint64(n) != o.Size { //nolint:gosec // not negative
		return n, fmt.Errorf("%w: it has %d of %d bytes", ErrLost, n, o.Size)
	}
	return n, nil
}

// whole refuses an object of which the server has lost chunks: who reads would wait for them.
func (s Objects) whole(ctx context.Context, object string) (*jetstream.ObjectInfo, error) {
	o, err := s.Newest(ctx, s.MetaSubject(object))
	if err == nil && o.Deleted {
		err = jetstream.ErrObjectNotFound
	}
	if err != nil {
		return nil, err
	}
	chunks, err := s.Subjects(ctx, s.ChunkSubject(o.NUID))
	if have := chunks[s.ChunkSubject(o.NUID)]; err == nil && have != uint64(o.Chunks) {
		err = fmt.Errorf("%w: it has %d of %d chunks", ErrLost, have, o.Chunks)
	}
	return o, err
}

// Newest returns the object on that subject of MetaSubject, also what is left of a deleted one.
func (s Objects) Newest(ctx context.Context, subject string) (*jetstream.ObjectInfo, error) {
	m, err := Newest(ctx, s.js, s.stream(), subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, jetstream.ErrObjectNotFound
	}
	if err != nil {
		return nil, err
	}
	var o jetstream.ObjectInfo
	if err := json.Unmarshal(m.Data, &o); err != nil {
		return nil, fmt.Errorf("%w: %w", jetstream.ErrBadObjectMeta, err)
	}
	return &o, nil
}

// Subjects returns how many messages there are on each subject.
func (s Objects) Subjects(ctx context.Context, filter string) (map[string]uint64, error) {
	str, err := s.js.Stream(ctx, s.stream())
	if err != nil {
		return nil, err
	}
	info, err := str.Info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return nil, err
	}
	return info.State.Subjects, nil
}

// Purge takes away what is on a subject: the client would leave a mark, for ever.
func (s Objects) Purge(ctx context.Context, subject string) error {
	str, err := s.js.Stream(ctx, s.stream())
	if err == nil {
		err = str.Purge(ctx, jetstream.WithPurgeSubject(subject))
	}
	return err
}

func (s Objects) stream() string { return "OBJ_" + s.bucket }

// MetaPrefix begins the subjects of MetaSubject.
func (s Objects) MetaPrefix() string { return "$O." + s.bucket + ".M." }

// MetaSubject is where an object is described.
func (s Objects) MetaSubject(object string) string {
	return s.MetaPrefix() + base64.URLEncoding.EncodeToString([]byte(object))
}

// ChunkSubject is where the content of the object of that id is.
func (s Objects) ChunkSubject(nuid string) string { return "$O." + s.bucket + ".C." + nuid }
