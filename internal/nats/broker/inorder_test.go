package broker

import (
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// A flipped bit in a message's number had the server enter all numbers up to it,
// at every start, until the machine's memory was gone. A start that fails is
// enough for the next one to look.
func TestMessagesAreCheckedAfterARunThatDidNotEndInOrder(t *testing.T) {
	dir := t.TempDir()
	stored := func(b *Broker) uint64 {
		t.Helper()
		js, err := jetstream.New(b.Conn())
		if err != nil {
			t.Fatal(err)
		}
		s, err := js.CreateOrUpdateStream(testContext(t), jetstream.StreamConfig{Name: "s", Subjects: []string{"s"}})
		if err != nil {
			t.Fatal(err)
		}
		if s.CachedInfo().State.Msgs == 0 {
			for range 20 {
				if _, err := js.Publish(testContext(t), "s", []byte("x")); err != nil {
					t.Fatal(err)
				}
			}
		}
		info, err := s.Info(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		return info.State.Msgs
	}
	if err := os.Symlink(t.TempDir(), filepath.Join(dir, "jetstream")); err != nil { // a disk of its own
		t.Fatal(err)
	}
	b := open(t, testConfig(t, dir))
	if got := stored(b); got != 20 {
		t.Fatalf("%d messages are stored", got)
	}
	closeBroker(t, b)

	msgs := filepath.Join(dir, "jetstream", "$G", "streams", "s", "msgs")
	states := func() bool {
		_, err := os.Stat(filepath.Join(msgs, "index.db"))
		return err == nil
	}
	b = open(t, testConfig(t, dir))
	if got := stored(b); got != 20 {
		t.Fatalf("after a stop in order %d messages are stored", got)
	}
	closeBroker(t, b)
	if !states() {
		t.Fatal("a server that stopped in order noted nothing of its messages")
	}

	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()
	cfg := testConfig(t, dir)
	cfg.Port = busy.Addr().(*net.TCPAddr).Port
	if _, err := Open(testContext(t), cfg); err == nil {
		t.Fatal("a server started at a busy port")
	}
	// The second message's number, behind the length of a record, is 2⁴⁰ more.
	file := filepath.Join(msgs, "1.blk")
	data, err := os.ReadFile(file) //nolint:gosec // the test's own directory
	if err != nil {
		t.Fatal(err)
	}
	data[binary.LittleEndian.Uint32(data)+4+5] ^= 1
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if checks, err := begin(dir); err != nil || !checks || states() {
		t.Fatalf("nothing is checked (%v, %v)", checks, err)
	}
	b = open(t, testConfig(t, dir))
	if got := stored(b); got != 1 {
		t.Errorf("%d messages are left; the one before the damage is whole", got)
	}
	closeBroker(t, b)
	if checks, err := begin(dir); err != nil || checks || !states() {
		t.Errorf("after a stop in order the next start checks (%v, %v)", checks, err)
	}
}
