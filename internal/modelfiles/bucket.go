package modelfiles

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
)

// File names a file of a set, as a registration does.
type File struct {
	Name string `json:"name"`
	Hash string `json:"sha256"`
	Size int64  `json:"bytes"`
}

// Files names the files of the set, in order.
func (s Set) Files() []File {
	list := make([]File, 0, len(s))
	for _, name := range slices.Sorted(maps.Keys(s)) {
		list = append(list, File{name, Hash(s[name]), int64(len(s[name]))})
	}
	return list
}

// ID returns that of the set which the files make.
func ID(list []File) string {
	hashes := make(map[string]string, len(list))
	for _, f := range list {
		hashes[f.Name] = f.Hash
	}
	return IDOf(hashes)
}

// Check says what is wrong with a list of files.
func Check(list []File) error {
	seen, sum := map[string]bool{}, int64(0)
	for _, f := range list {
		hash, err := hex.DecodeString(f.Hash)
		switch {
		case !Known(f.Name, f.Size) || seen[f.Name]:
			return fmt.Errorf("a tokenizer's file %.80q of %d bytes", f.Name, f.Size)
		case err != nil || len(hash) != 32 || f.Hash != hex.EncodeToString(hash):
			return fmt.Errorf("a tokenizer's file %s without a SHA-256 hash in lower case", f.Name)
		}
		seen[f.Name] = true
		sum += f.Size
	}
	if sum > MaxSet {
		return fmt.Errorf("a tokenizer's files of %d bytes, at most %d", sum, MaxSet)
	}
	return nil
}

// Keep is how long a file is kept that no publisher renews: while an engine of its model is
// there, its publisher does.
const Keep = 7 * 24 * time.Hour

const (
	// part bounds an object: the client sends all chunks of one at once.
	part      = 8 << 20
	chunkSize = 128 << 10
	partWait  = time.Minute
	// maxBucket bounds the bytes of all files of a namespace.
	maxBucket = 1 << 30
)

// Bucket keeps files by their hashes in the object store of NATS.
type Bucket struct {
	os      jetstream.ObjectStore
	objects stream.Objects
}

// BucketName returns the name of the namespace's bucket.
func BucketName(namespace string) string { return "kvatlas_" + namespace + "_models" }

// OpenBucket opens the namespace's bucket; with create it is made if absent.
func OpenBucket(ctx context.Context, nc *nats.Conn, namespace string, replicas int, create bool) (*Bucket, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("models' files: %w", err)
	}
	name := BucketName(namespace)
	b := &Bucket{objects: stream.NewObjects(js, name)}
	b.os, err = js.ObjectStore(ctx, name)
	if errors.Is(err, jetstream.ErrBucketNotFound) && create {
		err = stream.Copies(ctx, nc, replicas, func(replicas int) error {
			b.os, err = js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{
				Bucket: name, Description: "kvatlas models' files of namespace " + namespace, Replicas: replicas, Storage: jetstream.FileStorage,
				TTL: Keep, MaxBytes: maxBucket,
			})
			return err
		})
		if errors.Is(err, jetstream.ErrBucketExists) {
			b.os, err = js.ObjectStore(ctx, name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %s of models' files: %w", name, err)
	}
	return b, nil
}

func partName(hash string, n int64) string { return hash + "." + strconv.FormatInt(n, 10) }

// Put puts the files of a set that are not there, or not for much longer.
func (b *Bucket) Put(ctx context.Context, s Set) error {
	for name, data := range s {
		hash := Hash(data)
		if b.fresh(ctx, hash, data) {
			continue
		}
		for n := int64(0); n*part < int64(len(data)) || n == 0; n++ {
			if err := b.putPart(ctx, partName(hash, n), data[n*part:min(int64(len(data)), (n+1)*part)]); err != nil {
				return fmt.Errorf("storing %s: %w", name, err)
			}
		}
	}
	return nil
}

// fresh reports whether all parts of a file are there, and will be for a while: an object of
// other content under its name is put right. The client asks whichever server has a copy, for which
// publishers have the permission: one that is behind costs a file that is put again.
func (b *Bucket) fresh(ctx context.Context, hash string, data []byte) bool {
	for n := 0; n*part < len(data) || n == 0; n++ {
		sum := sha256.Sum256(data[n*part : min(len(data), (n+1)*part)])
		info, err := b.os.GetInfo(ctx, partName(hash, int64(n)))
		if err != nil || info.Digest != "SHA-256="+base64.URLEncoding.EncodeToString(sum[:]) || time.Since(info.ModTime) > Keep/2 {
			return false
		}
	}
	return true
}

func (b *Bucket) putPart(ctx context.Context, name string, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, partWait)
	defer cancel()
	_, err := b.os.Put(ctx, jetstream.ObjectMeta{Name: name, Opts: &jetstream.ObjectMetaOptions{ChunkSize: chunkSize}}, bytes.NewReader(data))
	return err
}

// Get returns the files, each of the content that its hash says.
func (b *Bucket) Get(ctx context.Context, list []File) (Set, error) {
	if err := Check(list); err != nil {
		return nil, err
	}
	s := Set{}
	for _, f := range list {
		data := make([]byte, 0, f.Size)
		for n := int64(0); n*part < f.Size || n == 0; n++ {
			var err error
			if data, err = b.getPart(ctx, partName(f.Hash, n), data, f.Size); err != nil {
				return nil, fmt.Errorf("fetching %s: %w", f.Name, err)
			}
		}
		if Hash(data) != f.Hash {
			return nil, fmt.Errorf("fetching %s: its content is not what its hash says", f.Name)
		}
		s[f.Name] = data
	}
	return s, nil
}

// getPart appends a part to the data, which has most bytes in the end.
func (b *Bucket) getPart(ctx context.Context, name string, data []byte, most int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, partWait)
	defer cancel()
	w := bounded{bytes.NewBuffer(data), most}
	_, err := b.objects.Read(ctx, name, w)
	return w.Bytes(), err
}

// bounded takes no more than most bytes.
type bounded struct {
	*bytes.Buffer
	most int64
}

func (w bounded) Write(p []byte) (int, error) {
	if int64(w.Len()+len(p)) > w.most {
		return 0, fmt.Errorf("it has more than %d bytes", w.most)
	}
	return w.Buffer.Write(p)
}
