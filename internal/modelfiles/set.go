package modelfiles

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"time"
)

// Server is the name of the file that says with which settings a server writes prompts.
const Server = "kvatlas.json"

// names are the files that are read, and how many bytes each may have. The largest
// tokenizer of a served model has 33 MB.
func names() map[string]int64 {
	return map[string]int64{
		"tokenizer.json": 64 << 20, "tekken.json": 64 << 20, "tiktoken.model": 16 << 20,
		"tokenizer_config.json": 16 << 20, "config.json": 1 << 20,
		"chat_template.jinja": 1 << 20, "additional_chat_templates/tool_use.jinja": 1 << 20,
		Server: 1 << 20,
	}
}

// MaxSet bounds the bytes of all files of a set.
const MaxSet = 96 << 20

// Known reports whether a set may have a file of this name and size.
func Known(name string, size int64) bool {
	most, ok := names()[name]
	return ok && size >= 0 && size <= most
}

// Set is the content of files by name. It is an fs.FS.
type Set map[string][]byte

// Read reads the files that there are in a directory.
func Read(dir fs.FS) (Set, error) {
	s, sum := Set{}, 0
	for name, most := range names() {
		data, err := readFile(dir, name, most)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("a model's files: %w", err)
		}
		if sum += len(data); sum > MaxSet {
			return nil, fmt.Errorf("a model's files: more than %d MiB", MaxSet>>20)
		}
		s[name] = data
	}
	if len(s) == 0 {
		return nil, errors.New("a model's files: no tokenizer.json is there")
	}
	return s, nil
}

func readFile(dir fs.FS, name string, most int64) ([]byte, error) {
	// Looked at before it is opened: that waits for a writer where it is a pipe.
	if info, err := fs.Stat(dir, name); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no file", name)
	}
	f, err := dir.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, fmt.Errorf("%s is no file of at most %d bytes", name, most)
	}
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("%s has grown beyond %d bytes", name, most)
	}
	return data, err
}

// ID returns the hash of names and contents.
func (s Set) ID() string {
	hashes := make(map[string]string, len(s))
	for name, data := range s {
		hashes[name] = Hash(data)
	}
	return IDOf(hashes)
}

// IDOf returns the ID of the set whose files have these hashes.
func IDOf(hashes map[string]string) string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(hashes)) {
		h.Write([]byte(strconv.Itoa(len(name)) + " " + name + " " + hashes[name] + "\n"))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Hash returns the hash of a file's content, by which it is known.
func Hash(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}

// Open implements fs.FS.
func (s Set) Open(name string) (fs.File, error) {
	data, ok := s[name]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return &file{Reader: bytes.NewReader(data), name: name}, nil
}

// file is an open file of a Set.
type file struct {
	*bytes.Reader
	name string
}

func (f *file) Stat() (fs.FileInfo, error) { return info{f}, nil }
func (f *file) Close() error               { return nil }

type info struct{ *file }

func (i info) Name() string     { return i.name }
func (i info) Size() int64      { return i.Reader.Size() }
func (info) Mode() fs.FileMode  { return 0o444 }
func (info) ModTime() time.Time { return time.Time{} }
func (info) IsDir() bool        { return false }
func (info) Sys() any           { return nil }

// Stamp tells one state of the directory's files from another without reading them.
func Stamp(dir fs.FS) string {
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(names())) {
		if i, err := fs.Stat(dir, name); err == nil {
			fmt.Fprintf(&b, "%s %d %d\n", name, i.Size(), i.ModTime().UnixNano())
		}
	}
	return b.String()
}
