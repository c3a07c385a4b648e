package sidecar

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/enginetest"
)

func sample(t testing.TB) ([]byte, *core.Oracle) {
	h := enginetest.NewHistory(enginetest.Releases()[3], 0, 1)
	if _, err := h.Go(40); err != nil {
		t.Fatal(err)
	}
	st := &state{identity: 1, incarnation: 2, last: 3, incomplete: true, eagle: true, hybrid: true, position: []byte("here"), set: newSet()}
	o := core.NewOracle()
	for i := range h.Batches {
		for j := range h.Batches[i].Events {
			ev := &h.Batches[i].Events[j]
			enginetest.Apply(o, 0, ev)
			if _, err := st.set.apply(ev, true, func(event.Event) error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
	}
	orphan := event.Event{Kind: event.Stored, Incomplete: true, HasParent: true, Parent: 1, Engine: []uint64{2, 3}, Local: []uint64{4, 5}}
	for range 3 {
		if _, err := st.set.apply(&orphan, true, func(event.Event) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	return appendState(nil, st), o
}

func TestStateComesBackWithItsCopies(t *testing.T) {
	b, want := sample(t)
	st, err := decodeState(b)
	if err != nil {
		t.Fatal(err)
	}
	if st.identity != 1 || st.incarnation != 2 || st.last != 3 || !st.incomplete || !st.eagle || !st.hybrid || string(st.position) != "here" {
		t.Errorf("%+v", st)
	}
	if err := enginetest.Compare(st.set.index, want); err != nil {
		t.Error(err)
	}
	orphans := 0
	st.set.orphans.Dump(func(ev *event.Event, copies []uint32) {
		orphans++
		if ev.Parent+1 != ev.Engine[0] || ev.Local[0] != ev.Engine[0]+2 || copies[0] != 3 {
			t.Errorf("%+v with %v copies", ev, copies)
		}
	})
	if orphans != 2 {
		t.Errorf("%d orphans", orphans)
	}
}

func TestDamagedStateIsRefused(t *testing.T) {
	b, _ := sample(t)
	for n := 0; n < len(b); n += 1 + n/50 {
		if _, err := decodeState(b[:n]); !errors.Is(err, errState) {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
		c := bytes.Clone(b)
		c[n] ^= 1 << (n % 8)
		if _, err := decodeState(c); !errors.Is(err, errState) {
			t.Fatalf("bit %d of byte %d: %v", n%8, n, err)
		}
	}
}

func TestFile(t *testing.T) {
	f := file{filepath.Join(t.TempDir(), "x.state")}
	if b, err := f.load(); b != nil || err != nil {
		t.Fatalf("%q, %v of a file that is not there", b, err)
	}
	for _, text := range []string{"one", "two"} {
		if err := f.save([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if b, err := f.load(); string(b) != text || err != nil {
			t.Fatalf("%q, %v, want %q", b, err, text)
		}
	}
	if info, err := os.Stat(f.path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if err := errors.Join(f.remove(), f.remove()); err != nil {
		t.Fatal(err)
	}
	if b, err := f.load(); b != nil || err != nil {
		t.Fatalf("%q, %v after the removal", b, err)
	}
	if err := (file{"/nonexistent/x"}).save(nil); err == nil {
		t.Error("saved nowhere")
	}
}

// FuzzState: any bytes with a right checksum give a state or an error.
func FuzzState(f *testing.F) {
	b, _ := sample(f)
	f.Add(b[:len(b)-stateSum])
	f.Fuzz(func(_ *testing.T, body []byte) {
		_, _ = decodeState(sealed(body))
	})
}

// FuzzLine: any line gives a message or an error.
func FuzzLine(f *testing.F) {
	f.Add([]byte(`{"type":"stored","seq":0,"hashes":[-1,"2"],"tokens":[1,2,3,4,5,6,7,8],"salt":"x"}`))
	f.Add([]byte(`{"type":"removed","seq":1,"hashes":[18446744073709551615],"tier":"disk"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		p := parser{blockSize: 4}
		_, ev, err := p.parse(line)
		if err == nil && len(ev.Local) > 0 && len(ev.Local) != len(ev.Engine) {
			t.Errorf("%d local hashes of %d blocks", len(ev.Local), len(ev.Engine))
		}
	})
}

// sealed appends the right checksum, and sets the head that every state has.
func sealed(body []byte) []byte {
	b := bytes.Clone(body)
	copy(b, stateMagic)
	if len(b) >= 8 {
		binary.LittleEndian.PutUint32(b[4:], stateVersion)
	}
	return binary.LittleEndian.AppendUint64(b, xxh3.Hash(b))
}
