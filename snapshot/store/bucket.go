package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	natsstream "github.com/kvatlas/kvatlas/internal/nats/stream"
)

// Bucket keeps snapshots in the object store of NATS: a bucket a stream, and
// the manifest in a key-value bucket of the namespace.
//
// A snapshot is stored in parts, each an object of its own: the client puts an
// object by sending all of its chunks at once, however many the server has not
// stored yet (nats.go 1.55, jetstream/object.go), so a part bounds that.
type Bucket struct {
	js      jetstream.JetStream
	stream  string
	cfg     BucketConfig
	kv      jetstream.KeyValue
	os      jetstream.ObjectStore
	objects natsstream.Objects
}

// BucketConfig holds the settings of a Bucket. The zero value is ready.
type BucketConfig struct {
	Replicas int    // copies in the cluster; 0 means three in one of three servers or more, else one
	Spool    string // directory for a copy while it is read; "" is the system's
	Part     int64  // bytes of an object; 0 means 16 MiB
}

const (
	defaultPart = 16 << 20
	chunkSize   = 128 << 10
	// partWait bounds one part's way. Without a deadline the client gives an
	// object five seconds.
	partWait = 2 * time.Minute
)

// KVName returns the name of the namespace's key-value bucket of manifests and
// leases.
func KVName(namespace string) string { return "kvatlas_" + namespace + "_snapshots" }

// OpenKV opens the bucket of manifests and leases, made if absent.
func OpenKV(ctx context.Context, js jetstream.JetStream, namespace string, replicas int) (jetstream.KeyValue, error) {
	name := KVName(namespace)
	kv, err := natsstream.OpenKV(ctx, js, jetstream.KeyValueConfig{
		Bucket: name, Description: "kvatlas snapshots of namespace " + namespace,
		History: 1, MaxBytes: 16 << 20, Replicas: replicas, Storage: jetstream.FileStorage,
	})
	if err != nil {
		return nil, fmt.Errorf("snapshot bucket %s: %w", name, err)
	}
	return kv, nil
}

// bucketName returns the object bucket of a stream.
func bucketName(stream string) string { return stream + "_snapshots" }

// OpenBucket returns the store of a stream of the namespace, made if absent.
func OpenBucket(ctx context.Context, nc *nats.Conn, namespace, stream string, cfg BucketConfig) (*Bucket, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("snapshot bucket: %w", err)
	}
	if cfg.Part <= 0 {
		cfg.Part = defaultPart
	}
	b := &Bucket{js: js, stream: stream, cfg: cfg}
	if b.kv, err = OpenKV(ctx, js, namespace, cfg.Replicas); err != nil {
		return nil, err
	}
	name := bucketName(stream)
	b.objects = natsstream.NewObjects(js, name)
	b.os, err = js.ObjectStore(ctx, name)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		err = natsstream.Copies(ctx, nc, cfg.Replicas, func(replicas int) error {
			b.os, err = js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{
				Bucket: name, Description: "kvatlas snapshots of " + stream, Replicas: replicas, Storage: jetstream.FileStorage,
			})
			return err
		})
		if errors.Is(err, jetstream.ErrBucketExists) {
			b.os, err = js.ObjectStore(ctx, name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("snapshot bucket %s: %w", name, err)
	}
	return b, nil
}

// String implements Store.
func (b *Bucket) String() string { return "NATS object store " + bucketName(b.stream) }

func partName(name string, part int) string { return name + "." + strconv.Itoa(part) }

// splitPart returns the snapshot that a part belongs to.
func splitPart(object string) (name string, part int, ok bool) {
	i := strings.LastIndexByte(object, '.')
	part, err := strconv.Atoi(object[i+1:])
	if i < 0 || err != nil || part < 0 || !isName(object[:i]) {
		return "", 0, false
	}
	return object[:i], part, true
}

// Put implements Store.
func (b *Bucket) Put(ctx context.Context, name string, write func(w io.Writer) error) error {
	if err := CheckName(name); err != nil {
		return err
	}
	pr, pw := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := write(pw)
		_ = pw.CloseWithError(err) // it never fails
		written <- err
	}()
	err := b.putParts(ctx, name, pr)
	_ = pr.CloseWithError(err)
	if werr := <-written; werr != nil {
		err = werr // putParts failed of it, or the other way round
	}
	if err != nil {
		return errors.Join(fmt.Errorf("snapshot: storing %s in %s: %w", name, b, err), b.Delete(context.WithoutCancel(ctx), name))
	}
	return nil
}

func (b *Bucket) putParts(ctx context.Context, name string, r io.Reader) error {
	for part := 0; ; part++ {
		limited := &io.LimitedReader{R: r, N: b.cfg.Part}
		pctx, cancel := context.WithTimeout(ctx, partWait)
		// Whole chunks: the client makes a message of each read.
		_, err := b.os.Put(pctx, jetstream.ObjectMeta{
			Name: partName(name, part), Opts: &jetstream.ObjectMetaOptions{ChunkSize: chunkSize},
		}, wholeReads{limited})
		cancel()
		if err != nil {
			return err
		}
		if limited.N > 0 {
			return nil
		}
	}
}

// wholeReads fills every read.
type wholeReads struct{ r io.Reader }

func (w wholeReads) Read(p []byte) (int, error) {
	n, err := io.ReadFull(w.r, p)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	return n, err
}

// Open implements Store: it copies the snapshot to a file first, as it is read
// twice. The file goes with Close.
func (b *Bucket) Open(ctx context.Context, name string) (File, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(b.cfg.Spool, "kvatlas-snapshot-")
	if err != nil {
		return nil, fmt.Errorf("snapshot: a place for a copy: %w", err)
	}
	s := &spooled{File: f, named: os.Remove(f.Name()) != nil} // who is killed leaves none
	if err := b.getParts(ctx, name, f); err != nil {
		return nil, errors.Join(fmt.Errorf("snapshot: reading %s of %s: %w", name, b, err), s.Close())
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, errors.Join(fmt.Errorf("snapshot: %w", err), s.Close())
	}
	return s, nil
}

func (b *Bucket) getParts(ctx context.Context, name string, w io.Writer) error {
	for part := 0; ; part++ {
		n, err := b.getPart(ctx, partName(name, part), w)
		switch {
		case errors.Is(err, jetstream.ErrObjectNotFound) && part == 0:
			return ErrNotFound
		case err != nil:
			return fmt.Errorf("part %d: %w", part, err)
		case n < b.cfg.Part:
			return nil
		}
	}
}

func (b *Bucket) getPart(ctx context.Context, object string, w io.Writer) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, partWait)
	defer cancel()
	return b.objects.Read(ctx, object, w)
}

// spooled is a file that goes with Close. It is named where what is open cannot be removed.
type spooled struct {
	*os.File
	named bool
}

func (s *spooled) Close() error {
	err := s.File.Close()
	if s.named {
		err = errors.Join(err, os.Remove(s.Name()))
	}
	return err
}

// list returns all objects, also what is left of deleted ones. The leader is asked for each: the client lists what
// one server of a cluster has, which may be behind, and waits for ever for the last one if that is purged meanwhile.
func (b *Bucket) list(ctx context.Context) ([]*jetstream.ObjectInfo, error) {
	subjects, err := b.objects.Subjects(ctx, b.objects.MetaPrefix()+">")
	if err != nil {
		return nil, fmt.Errorf("snapshot: listing %s: %w", b, err)
	}
	all := make([]*jetstream.ObjectInfo, 0, len(subjects))
	for subject := range subjects {
		o, err := b.objects.Newest(ctx, subject)
		if err == nil {
			all = append(all, o)
		} else if !errors.Is(err, jetstream.ErrObjectNotFound) {
			return nil, fmt.Errorf("snapshot: listing %s: %w", b, err)
		}
	}
	return all, nil
}

// Delete implements Store. Nothing is left of an object: the client would leave a mark, for ever.
func (b *Bucket) Delete(ctx context.Context, name string) error {
	all, err := b.list(ctx)
	if err != nil {
		return err
	}
	for _, o := range all {
		if n, _, ok := splitPart(o.Name); o.Name == name || ok && n == name {
			err = errors.Join(err, b.purge(ctx, b.objects.MetaSubject(o.Name)), b.purge(ctx, b.objects.ChunkSubject(o.NUID)))
		}
	}
	return err
}

func (b *Bucket) purge(ctx context.Context, subject string) error {
	if err := b.objects.Purge(ctx, subject); err != nil {
		return fmt.Errorf("snapshot: deleting of %s: %w", b, err)
	}
	return nil
}

// Names implements Store.
func (b *Bucket) Names(ctx context.Context) ([]string, error) {
	all, err := b.list(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, o := range all {
		if o.Deleted {
			continue
		}
		if n, _, ok := splitPart(o.Name); ok {
			names = append(names, n)
		} else {
			names = append(names, o.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func (b *Bucket) manifestKey() string { return "manifest." + b.stream }

// Manifest implements Store. The leader tells it: by an older one a writer would take the snapshot
// for none that counts that it has just made the newest, and delete it.
func (b *Bucket) Manifest(ctx context.Context) (Manifest, Revision, error) {
	bucket := b.kv.Bucket()
	v, err := natsstream.Newest(ctx, b.js, "KV_"+bucket, "$KV."+bucket+"."+b.manifestKey())
	if errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && v.Header.Get("KV-Operation") != "" { // deleted
		return Manifest{}, 0, nil
	}
	if err != nil {
		return Manifest{}, 0, fmt.Errorf("snapshot manifest: %w", err)
	}
	m, err := decodeManifest(v.Data, b.stream)
	return m, Revision(v.Sequence), err
}

// Replace implements Store.
func (b *Bucket) Replace(ctx context.Context, m Manifest, of Revision) error {
	data, err := encodeManifest(m, b.stream)
	if err != nil {
		return err
	}
	if of == 0 {
		_, err = b.kv.Create(ctx, b.manifestKey(), data)
	} else {
		_, err = b.kv.Update(ctx, b.manifestKey(), data, uint64(of))
	}
	switch {
	case err == nil:
		return nil
	case natsstream.IsConflict(err):
		return ErrConflict
	}
	return fmt.Errorf("snapshot manifest: %w", err)
}

// Clean takes away chunks that no object has, what a process left that died while it stored
// one, and the marks of deleted objects. Only who may write calls it.
func (b *Bucket) Clean(ctx context.Context) error {
	chunks, err := b.objects.Subjects(ctx, b.objects.ChunkSubject(">"))
	if err != nil {
		return fmt.Errorf("snapshot: %s: %w", b, err)
	}
	all, err := b.list(ctx)
	if err != nil {
		return err
	}
	for _, o := range all {
		if o.Deleted {
			err = errors.Join(err, b.purge(ctx, b.objects.MetaSubject(o.Name)))
		} else {
			delete(chunks, b.objects.ChunkSubject(o.NUID))
		}
	}
	for subject := range chunks {
		err = errors.Join(err, b.purge(ctx, subject))
	}
	return err
}
