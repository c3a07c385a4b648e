package stream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/program/conf"
)

// The sizes of streams, in bytes: what a stream may become unless told, what it
// begins with, and the smallest that is tried where the server has no room for
// that.
const (
	defaultBytes = 8 << 30
	firstBytes   = 256 << 20
	leastBytes   = 64 << 20
)

// The server's error codes (nats-server, errors.json).
const (
	noRoom      jetstream.ErrorCode = 10047 // it cannot set a stream's MaxBytes aside
	notMade     jetstream.ErrorCode = 10049 // the server could not make a stream
	noPeers     jetstream.ErrorCode = 10005 // too few servers for so many copies
	noCluster   jetstream.ErrorCode = 10074 // more than one copy, and no cluster
	storeFailed jetstream.ErrorCode = 10077 // with text of what failed
)

// Declare adds the settings of streams that a program makes to the set.
func (c *Config) Declare(set *conf.Set) {
	set.Group("Streams")
	set.Bytes(&c.MaxBytes, "stream-max-bytes", defaultBytes, `Bytes that a space's stream may take on a server's disk; beyond, publishing
		waits. A stream begins with 256 MiB and is enlarged as it fills. Used by whoever makes the stream.`, conf.Between[int64](1<<20, 1<<50))
	set.Duration(&c.MaxAge, "stream-max-age", time.Hour, `How long a message stays in a space's stream. Replicas take snapshots
		at least twice in it. Used by whoever makes the stream.`, conf.Between(time.Minute, 365*24*time.Hour))
	set.Int(&c.Partitions, "stream-partitions", 1, `Streams of a space, each with the events of a part of its workers, for fleets
		that are too large for one indexer: see --share of kvindexer. Used by whoever makes the first; all others follow.`, conf.Between(1, MaxPartitions))
}

// Copies calls create with how many copies a new stream or bucket is to have:
// replicas, or if that is 0 three, where the server is of a cluster of three or
// more, else one. It calls it again for a second while the server cannot make the
// directory: after an account's last stream is deleted it (2.15.2) removes the empty
// directories above, later than it answers, and from under a stream that comes then.
func Copies(ctx context.Context, nc *nats.Conn, replicas int, create func(replicas int) error) error {
	for wait := 20 * time.Millisecond; ; wait *= 2 {
		err := copies(nc, replicas, create)
		if !isCode(err, notMade) || wait > time.Second {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

func copies(nc *nats.Conn, replicas int, create func(replicas int) error) error {
	if replicas > 0 {
		return create(replicas)
	}
	err := create(3)
	// With a server of three that is away for the moment, one copy would be for
	// good: that is waited for.
	if isCode(err, noCluster) || isCode(err, noPeers) && len(nc.Servers()) < 3 {
		return create(1)
	}
	return err
}

// OpenKV opens a key-value bucket, made as cfg says if it does not exist, with as many
// copies as Copies says.
func OpenKV(ctx context.Context, js jetstream.JetStream, cfg jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
	kv, err := js.KeyValue(ctx, cfg.Bucket)
	if !errors.Is(err, jetstream.ErrBucketNotFound) {
		return kv, err
	}
	err = Copies(ctx, js.Conn(), cfg.Replicas, func(replicas int) error {
		cfg.Replicas = replicas
		kv, err = js.CreateKeyValue(ctx, cfg)
		return err
	})
	if err != nil && !errors.Is(err, jetstream.ErrBucketExists) { // another process was faster
		return kv, err
	}
	// The server of a cluster that answers who asks may hear of it later than the one that made it.
	for wait := 20 * time.Millisecond; ; wait *= 2 {
		kv, err = js.KeyValue(ctx, cfg.Bucket)
		if !errors.Is(err, jetstream.ErrBucketNotFound) || wait > 5*time.Second {
			return kv, err
		}
		select {
		case <-ctx.Done():
			return kv, err
		case <-time.After(wait):
		}
	}
}

// create makes the stream with its first size, or the largest half of that which
// the server has room for.
func create(ctx context.Context, js jetstream.JetStream, cfg Config, sc jetstream.StreamConfig) (s jetstream.Stream, err error) {
	least := min(leastBytes, cfg.FirstBytes)
	for sc.MaxBytes = cfg.FirstBytes; ; sc.MaxBytes = max(sc.MaxBytes/2, least) {
		err = Copies(ctx, js.Conn(), cfg.Replicas, func(replicas int) error {
			sc.Replicas = replicas
			s, err = js.CreateStream(ctx, sc)
			return err
		})
		if !isCode(err, noRoom) {
			return s, err
		}
		if sc.MaxBytes <= least {
			return nil, fmt.Errorf("the server's storage has no room for %d MiB: lower the stream's size or free disk space: %w", sc.MaxBytes>>20, err)
		}
	}
}

func isCode(err error, code jetstream.ErrorCode) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == code
}

// IsFull reports whether a message was refused because the stream has no room.
func IsFull(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == storeFailed && api.Description == "maximum bytes exceeded"
}

// MaxBytes returns what the stream may become: its present size where somebody
// else has made it.
func MaxBytes(sc *jetstream.StreamConfig) int64 {
	if n, err := strconv.ParseInt(sc.Metadata[metaMaxBytes], 10, 64); err == nil && sc.MaxBytes > 0 {
		return max(n, sc.MaxBytes)
	}
	return sc.MaxBytes
}

// Grow doubles the size of a stream that is half full or more, up to
// Config.MaxBytes of who made it, and reports whether there is room now.
func Grow(ctx context.Context, js jetstream.JetStream, name string) (bool, error) {
	s, err := js.Stream(ctx, name)
	if err != nil {
		return false, fmt.Errorf("stream %s: %w", name, err)
	}
	info := s.CachedInfo()
	sc, most := info.Config, MaxBytes(&info.Config)
	switch {
	case info.State.Bytes < uint64(sc.MaxBytes)/2:
		return true, nil // another has enlarged it, or taken something off
	case sc.MaxBytes >= most:
		return false, nil
	}
	sc.MaxBytes = min(2*sc.MaxBytes, most)
	if _, err := js.UpdateStream(ctx, sc); err != nil {
		return false, fmt.Errorf("stream %s cannot be enlarged to %d MiB: %w", name, sc.MaxBytes>>20, err)
	}
	return true, nil
}
