package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// BucketConfig holds what a new bucket is made with. The zero value is ready.
type BucketConfig struct {
	Replicas int   // copies in the cluster; 0 means three in one of three servers or more, else one
	MaxBytes int64 // 0 means 64 MiB; about 1 KiB a worker
}

const maxValue = 64 << 10

// ErrUnsafe is wrapped by the error for a bucket that forgets registrations.
var ErrUnsafe = errors.New("the registry's bucket is not safe to use")

// BucketName returns the name of a namespace's bucket.
func BucketName(namespace string) string { return "kvatlas_" + namespace + "_registry" }

// Bucket is the key-value bucket of a namespace's registry. It is safe for
// concurrent use.
type Bucket struct {
	js        jetstream.JetStream
	namespace string
	kv        jetstream.KeyValue
}

// OpenBucket opens the namespace's bucket, made if it does not exist.
func OpenBucket(ctx context.Context, nc *nats.Conn, namespace string, cfg BucketConfig) (*Bucket, error) {
	if err := stream.CheckNamespace(namespace); err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	if nc == nil {
		return nil, errors.New("registry: no connection given")
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	kv, err := openKV(ctx, js, namespace, cfg)
	if err != nil {
		return nil, err
	}
	return &Bucket{js: js, namespace: namespace, kv: kv}, nil
}

func openKV(ctx context.Context, js jetstream.JetStream, namespace string, cfg BucketConfig) (jetstream.KeyValue, error) {
	name := BucketName(namespace)
	kv, err := stream.OpenKV(ctx, js, jetstream.KeyValueConfig{
		Bucket: name, Description: "kvatlas workers of namespace " + namespace, History: 1, Storage: jetstream.FileStorage,
		MaxValueSize: maxValue, MaxBytes: cmp.Or(cfg.MaxBytes, 64<<20), Replicas: cfg.Replicas,
	})
	if err != nil {
		return nil, fmt.Errorf("registry: bucket %s: %w", name, stream.Explain(err))
	}
	st, err := kv.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("registry: bucket %s: %w", name, stream.Explain(err))
	}
	switch {
	case st.TTL() != 0:
		return nil, fmt.Errorf("%w: bucket %s has a TTL, which would drop every worker while the server is away; set it to 0", ErrUnsafe, name)
	case st.Config().Storage != jetstream.FileStorage:
		return nil, fmt.Errorf("%w: bucket %s is kept in memory only; make it anew with file storage", ErrUnsafe, name)
	}
	return kv, nil
}

// changeOf returns a bucket's entry as a ledger takes it.
func changeOf(e jetstream.KeyValueEntry) change {
	return change{key: e.Key(), value: e.Value(), deleted: e.Operation() != jetstream.KeyValuePut,
		revision: e.Revision(), created: e.Created()}
}

// unanswered says of an error of the bucket what to look at where it does not answer.
func unanswered(err error) error {
	if errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("the bucket takes nothing: %s: %w", obs.SeeCluster, err)
	}
	return stream.Explain(err)
}

// newest returns a key as the stream's leader has it, see stream.Newest, and an error that wraps
// jetstream.ErrKeyNotFound if it is not there or was deleted.
func (b *Bucket) newest(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	bucket := BucketName(b.namespace)
	m, err := stream.Newest(ctx, b.js, "KV_"+bucket, "$KV."+bucket+"."+key)
	if errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && m.Header.Get("KV-Operation") != "" {
		err = jetstream.ErrKeyNotFound
	}
	if err != nil {
		return nil, 0, err
	}
	return m.Data, m.Sequence, nil
}

// clean takes garbage out of the bucket, unless it has changed since. It leaves
// no marker: that would say that a worker left at this moment.
func (b *Bucket) clean(ctx context.Context, g garbage) error {
	s, err := b.js.Stream(ctx, "KV_"+BucketName(b.namespace))
	if err != nil {
		return err
	}
	// Everything of the subject up to the revision, and nothing after it.
	return s.Purge(ctx, jetstream.WithPurgeSubject("$KV."+BucketName(b.namespace)+"."+g.key), jetstream.WithPurgeSequence(g.revision+1))
}

// Contents is what a bucket says at one moment: who is registered, and not who
// left.
type Contents struct {
	Workers []Entry
	Drained []Drained
	Corrupt []Corrupt
}

// Drained is a drained worker, registered or not.
type Drained struct {
	Worker uint64
	Since  time.Time
	By     string
}

// Read returns what the bucket says now. The states are judged by the times at
// which the server stored the heartbeats and the server's clock, since one
// look cannot tell a silent worker from a silent server: they are for people.
func (b *Bucket) Read(ctx context.Context) (Contents, error) {
	server, err := b.clock(ctx)
	if err != nil {
		return Contents{}, fmt.Errorf("registry: reading the bucket: %w", unanswered(err))
	}
	now := time.Now()
	w, err := b.kv.WatchAll(ctx)
	if err != nil {
		return Contents{}, fmt.Errorf("registry: reading the bucket: %w", unanswered(err))
	}
	defer w.Stop() //nolint:errcheck // it goes with the connection
	l := newLedger(ledgerConfig{maxWorkers: 1 << 20}, newMeters(metrics.NewSet()), func(Event) {})
	l.begin()
	for {
		select {
		case e := <-w.Updates():
			if e != nil {
				l.apply(now, changeOf(e))
				continue
			}
			for _, m := range l.members {
				m.state = m.stateByClock(server)
				m.seen, m.heard = now.Add(m.stored.Sub(server)), true // by this machine's clock
			}
			c := l.contents()
			c.Workers = slices.DeleteFunc(c.Workers, func(e Entry) bool { return e.State == Gone })
			return c, nil
		case <-ctx.Done():
			return Contents{}, fmt.Errorf("registry: reading the bucket: %w", unanswered(ctx.Err()))
		}
	}
}

// clock returns what time it is by the server, or here if the server does not say it, as before 2.10.
func (b *Bucket) clock(ctx context.Context) (time.Time, error) {
	st, err := b.kv.Status(ctx)
	if err != nil {
		return time.Time{}, err
	}
	if s, ok := st.(*jetstream.KeyValueBucketStatus); ok && !s.StreamInfo().TimeStamp.IsZero() {
		return s.StreamInfo().TimeStamp, nil
	}
	return time.Now(), nil
}

// stateByClock judges a member by the age of its announcement.
func (m *member) stateByClock(now time.Time) State {
	age := now.Sub(m.stored)
	switch {
	case m.lease == nil && len(m.http) == 0:
		return Gone
	case m.lease == nil || age < m.leaseTime()/2:
		return Live
	case age < m.leaseTime():
		return Suspect
	}
	return Lost
}
