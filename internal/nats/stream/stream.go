package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
)

// Config holds what a new stream is made with. The zero value is ready.
type Config struct {
	MaxAge time.Duration // how long messages stay; 0 means 1 h
	// MaxBytes is the size beyond which new messages are refused; 0 means 8 GiB.
	// A server sets a stream's size aside when it is made, so a stream begins
	// with FirstBytes (0 means 256 MiB), and Grow brings it there as it fills.
	MaxBytes, FirstBytes int64
	Replicas             int // copies in the cluster; 0 means as Copies says
	// Partitions is how many streams a space has, each with a part of its workers; 0
	// means 1. Whoever makes the first of them says it for all.
	Partitions int
	// DuplicateWindow is how long the server remembers message ids; 0 means
	// 2 min. Ids older than that cost a duplicate message, which the reader
	// recognises by its event ids.
	DuplicateWindow time.Duration
	// Batches lets publishers send what a process has for the stream together (JetStream's
	// atomic batches), for servers that sync each message before it is acknowledged: a batch
	// costs some ten syncs however many messages it has. With others it costs time.
	Batches bool
}

func (c Config) withDefaults() Config {
	if c.MaxAge == 0 {
		c.MaxAge = time.Hour
	}
	c.MaxBytes = cmp.Or(c.MaxBytes, defaultBytes)
	c.FirstBytes = min(cmp.Or(c.FirstBytes, firstBytes), c.MaxBytes)
	if c.DuplicateWindow == 0 {
		c.DuplicateWindow = min(2*time.Minute, c.MaxAge)
	}
	return c
}

// Info describes a space's stream.
type Info struct {
	Name      string
	Namespace string
	Space     event.Space
	// Partition says which of the space's Partitions streams it is.
	Partition, Partitions int
	// Created tells a stream from one of the same name made later.
	Created  time.Time
	FirstSeq uint64
	LastSeq  uint64
	LastTime time.Time // when the stream stored the last message
	At       time.Time // of this answer, by the server's clock as those are; zero: the server does not say, as before 2.10
	Messages uint64
	Bytes    uint64
	// Size is the bytes beyond which messages are refused at the moment, and
	// MaxBytes how far Grow enlarges it; 0 or less means no limit.
	Size, MaxBytes int64
	// MaxMessage bounds a message's size in bytes; 0 means that only the
	// server's maximum payload does.
	MaxMessage int
	Batches    bool // messages may be sent together
}

// ErrUnsafe is wrapped by the error for a stream whose configuration loses
// acknowledged messages or does not fit the space.
var ErrUnsafe = errors.New("stream is not safe to use")

// The keys of a stream's metadata. The server refuses none of them.
const (
	metaNamespace = "kvatlas.namespace"
	metaModel     = "kvatlas.model"
	metaBlockSize = "kvatlas.block_size"
	metaGroup     = "kvatlas.group"
	metaMaxBytes  = "kvatlas.max_bytes" // Config.MaxBytes
	// Of a space with several streams only.
	metaPartition  = "kvatlas.partition"
	metaPartitions = "kvatlas.partitions"
)

// Ensure makes the space's stream, or the first of several, if it does not exist and
// checks it if it does. The error wraps ErrUnsafe for a stream that must not be used.
func Ensure(ctx context.Context, js jetstream.JetStream, ns string, sp event.Space, cfg Config) (Info, error) {
	if err := CheckNamespace(ns); err != nil {
		return Info{}, err
	}
	if sp.Model == "" {
		return Info{}, errors.New("stream of a space without a model name")
	}
	if cfg.Partitions < 0 || cfg.Partitions > MaxPartitions {
		return Info{}, fmt.Errorf("%d streams of a space: at most %d", cfg.Partitions, MaxPartitions)
	}
	return ensure(ctx, js, ns, sp, 0, cfg.withDefaults())
}

// EnsureFor is Ensure for that stream of the space which takes the worker's events.
func EnsureFor(ctx context.Context, js jetstream.JetStream, ns string, sp event.Space, worker uint64, cfg Config) (Info, error) {
	info, err := Ensure(ctx, js, ns, sp, cfg)
	if err != nil {
		return info, err
	}
	part := Partition(worker, info.Partitions)
	if part == 0 {
		return info, nil
	}
	cfg = cfg.withDefaults()
	cfg.Partitions = info.Partitions // as is agreed
	other, err := ensure(ctx, js, ns, sp, part, cfg)
	if err == nil && other.Partitions != info.Partitions {
		err = fmt.Errorf("%w: stream %s is one of %d, and %s of %d: delete it", ErrUnsafe, other.Name, other.Partitions, info.Name, info.Partitions)
	}
	return other, err
}

func ensure(ctx context.Context, js jetstream.JetStream, ns string, sp event.Space, part int, cfg Config) (Info, error) {
	name := partName(ns, sp, part)
	s, err := js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		meta := map[string]string{
			metaNamespace: ns,
			metaModel:     sp.Model,
			metaBlockSize: strconv.FormatUint(uint64(sp.BlockSize), 10),
			metaGroup:     sp.Group,
			metaMaxBytes:  strconv.FormatInt(cfg.MaxBytes, 10),
		}
		if cfg.Partitions > 1 {
			meta[metaPartition], meta[metaPartitions] = strconv.Itoa(part), strconv.Itoa(cfg.Partitions)
		}
		s, err = create(ctx, js, cfg, jetstream.StreamConfig{
			Name:        name,
			Description: "KV cache events of " + sp.Model,
			Subjects:    []string{captures(ns, sp, part, cfg.Partitions)},
			Storage:     jetstream.FileStorage,
			Retention:   jetstream.LimitsPolicy,
			Discard:     jetstream.DiscardNew,
			MaxAge:      cfg.MaxAge,
			Duplicates:  cfg.DuplicateWindow,
			Metadata:    meta,

			AllowAtomicPublish: cfg.Batches,
		})
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process was faster
			s, err = js.Stream(ctx, name)
		}
	}
	if err != nil {
		return Info{}, fmt.Errorf("stream %s: %w", name, Explain(err))
	}
	info, err := read(s.CachedInfo())
	if err != nil {
		return Info{}, err
	}
	if info.Namespace != ns || info.Space != sp {
		return Info{}, fmt.Errorf("%w: stream %s belongs to space %+v of namespace %q", ErrUnsafe, name, info.Space, info.Namespace)
	}
	return info, nil
}

// GetFor is Get for that stream of the space which takes the worker's events.
func GetFor(ctx context.Context, js jetstream.JetStream, ns string, sp event.Space, worker uint64) (Info, error) {
	info, err := Get(ctx, js, Name(ns, sp))
	if part := Partition(worker, info.Partitions); err == nil && part > 0 {
		return Get(ctx, js, partName(ns, sp, part))
	}
	return info, err
}

// MaxWindow is the most messages of one publisher that may be on their way to the
// stream at once: readers hold back as many while one is missing.
const MaxWindow = 256

// Get returns the stream's present state; the error wraps ErrUnsafe as that
// of Ensure does, or jetstream.ErrStreamNotFound.
func Get(ctx context.Context, js jetstream.JetStream, name string) (Info, error) {
	_, info, err := Open(ctx, js, name)
	return info, err
}

// List returns the namespace's streams, sorted by name, and errors.Join of one
// error for each that must not be used: one bad stream does not hide the others.
// With an error that wraps no ErrUnsafe the list may be incomplete.
func List(ctx context.Context, js jetstream.JetStream, ns string) ([]Info, error) {
	if err := CheckNamespace(ns); err != nil {
		return nil, err
	}
	var infos []Info
	var bad []error
	l := js.ListStreams(ctx, jetstream.WithStreamListSubject(namespaceSubjects(ns)))
	for si := range l.Info() {
		if _, ours := si.Config.Metadata[metaModel]; !ours {
			continue // a backup or a user's own view on the subjects
		}
		info, err := read(si)
		if err != nil {
			bad = append(bad, err)
			continue
		}
		if info.Namespace == ns {
			infos = append(infos, info)
		}
	}
	if err := l.Err(); err != nil {
		return infos, fmt.Errorf("streams of namespace %s: %w", ns, Explain(err))
	}
	slices.SortFunc(infos, func(a, b Info) int { return strings.Compare(a.Name, b.Name) })
	return infos, errors.Join(bad...)
}

// read checks a stream and returns what its metadata and state say.
func read(si *jetstream.StreamInfo) (Info, error) {
	m := si.Config.Metadata
	bs, err := strconv.ParseUint(m[metaBlockSize], 10, 32)
	if err != nil || m[metaModel] == "" {
		return Info{}, fmt.Errorf("%w: stream %s has no space in its metadata", ErrUnsafe, si.Config.Name)
	}
	info := Info{
		Name:       si.Config.Name,
		Namespace:  m[metaNamespace],
		Space:      event.Space{Model: m[metaModel], BlockSize: uint32(bs), Group: m[metaGroup]},
		Created:    si.Created,
		FirstSeq:   si.State.FirstSeq,
		LastSeq:    si.State.LastSeq,
		LastTime:   si.State.LastTime,
		At:         si.TimeStamp,
		Messages:   si.State.Msgs,
		Bytes:      si.State.Bytes,
		Size:       si.Config.MaxBytes,
		MaxBytes:   MaxBytes(&si.Config),
		MaxMessage: max(0, int(si.Config.MaxMsgSize)),
		Batches:    si.Config.AllowAtomicPublish,
	}
	info.Partitions = 1
	if text := m[metaPartitions]; text != "" {
		n, err := strconv.Atoi(text)
		part, err2 := strconv.Atoi(m[metaPartition])
		if err != nil || err2 != nil || n < 1 || n > MaxPartitions || part < 0 || part >= n {
			return Info{}, fmt.Errorf("%w: stream %s is the %q-th of %q by its metadata", ErrUnsafe, si.Config.Name, m[metaPartition], text)
		}
		info.Partition, info.Partitions = part, n
	}
	if info.Name != partName(info.Namespace, info.Space, info.Partition) {
		return Info{}, fmt.Errorf("%w: stream %s has the metadata of space %+v of namespace %q", ErrUnsafe, info.Name, info.Space, info.Namespace)
	}
	if why := unsafe(&si.Config, captures(info.Namespace, info.Space, info.Partition, info.Partitions)); why != "" {
		return Info{}, fmt.Errorf("%w: stream %s %s; remove it or change its configuration", ErrUnsafe, info.Name, why)
	}
	return info, nil
}

// unsafe says how the configuration loses messages; empty if it does not. The
// order matters for the message only.
func unsafe(c *jetstream.StreamConfig, want string) string {
	switch {
	case c.Storage != jetstream.FileStorage:
		return "keeps messages in memory only: a restart of the server loses them"
	case c.PersistMode == jetstream.AsyncPersistMode:
		// The server then acknowledges before it writes, and ignores its
		// sync_interval (nats-server 2.15.2, filestore.go).
		return "persists asynchronously: a crash of the server loses acknowledged messages"
	case c.NoAck:
		return "does not acknowledge: publishers cannot know what is stored"
	case c.Retention != jetstream.LimitsPolicy:
		return "does not keep messages by limits: a message would go once one reader has it"
	case c.Discard == jetstream.DiscardOld && (c.MaxBytes > 0 || c.MaxMsgs > 0):
		return "discards old messages when full: use discard policy \"new\", or an age limit alone"
	case c.MaxMsgsPerSubject > 0:
		return "keeps a limited number of messages a worker"
	case c.Mirror != nil || len(c.Sources) > 0:
		return "copies another stream: its sequence is not the publishers'"
	case c.Sealed:
		return "is sealed"
	case c.SubjectTransform != nil:
		return "rewrites subjects"
	case len(c.Subjects) != 1 || c.Subjects[0] != want:
		return fmt.Sprintf("captures %q instead of %q", c.Subjects, want)
	}
	return ""
}
