package tokenize

import (
	"errors"
	"fmt"
	"math"

	"github.com/kvatlas/kvatlas/internal/wire/jsonscan"
)

var errJSON = errors.New("not valid JSON")

// reader goes once over a file's JSON, in place: a vocabulary of 30 MB is not
// worth a map of Go strings.
type reader struct{ jsonscan.Reader }

func newReader(b []byte) *reader {
	r := new(reader)
	r.Reset(b)
	return r
}

// bad returns why it cannot go on, if it cannot.
func (r *reader) bad() error {
	if err := r.Err(); err != nil {
		return fmt.Errorf("%w: %w", errJSON, err)
	}
	return nil
}

// str reads a string. What it returns is good until the next one.
func (r *reader) str() ([]byte, error) {
	s := r.Str()
	return s, r.bad()
}

// uint reads a number that is an id.
func (r *reader) uint() (uint32, error) {
	n := r.Uint32()
	if n == math.MaxUint32 {
		r.Fail(jsonscan.ErrRange)
	}
	return n, r.bad()
}

// skip goes over a value of any kind and returns it.
func (r *reader) skip() ([]byte, error) {
	b := r.Raw()
	return b, r.bad()
}

// object calls f with each key; f reads the value.
func (r *reader) object(f func(key []byte) error) error {
	if r.Open('{') {
		for first := true; r.More('}', &first); {
			key := r.Key()
			if err := r.bad(); err != nil {
				return err
			}
			if err := f(key); err != nil {
				return err
			}
		}
	}
	return r.bad()
}

// array calls f before each element; f reads it.
func (r *reader) array(f func() error) error {
	if r.Open('[') {
		for first := true; r.More(']', &first); {
			if err := f(); err != nil {
				return err
			}
		}
	}
	return r.bad()
}

// fields are an object's values as they stand, by key.
func fields(b []byte) (map[string][]byte, error) {
	m := map[string][]byte{}
	r := newReader(b)
	err := r.object(func(key []byte) error {
		k := string(key)
		if _, ok := m[k]; ok {
			return fmt.Errorf("%q stands twice", k)
		}
		v, err := r.skip()
		m[k] = v
		return err
	})
	if err == nil {
		r.End()
		err = r.bad()
	}
	return m, err
}
