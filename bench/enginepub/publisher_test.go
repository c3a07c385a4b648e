package enginepub

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/engines/zmtp"
)

const patience = 20 * time.Second

func start(t *testing.T, cfg Config) *Publisher {
	t.Helper()
	if cfg.Endpoint == "" {
		cfg.Endpoint, cfg.Replay = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func dial(t *testing.T, endpoint string, kind zmtp.Type) *zmtp.Conn {
	t.Helper()
	c, err := zmtp.Dial(t.Context(), endpoint, kind, zmtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return c
}

func subscribers(t *testing.T, p *Publisher, n int) {
	t.Helper()
	for deadline := time.Now().Add(patience); p.Subscribers() != n; {
		if time.Now().After(deadline) {
			t.Fatalf("%d subscribers, want %d", p.Subscribers(), n)
		}
		<-time.After(time.Millisecond)
	}
}

// next reads one message.
func next(t *testing.T, c *zmtp.Conn) (frames []string) {
	t.Helper()
	var m zmtp.Message
	if err := c.ReadMessage(&m); err != nil {
		t.Fatal(err)
	}
	for i := range m.Len() {
		frames = append(frames, string(m.Frame(i)))
	}
	return frames
}

func number(n uint64) string { return string(binary.BigEndian.AppendUint64(nil, n)) }

func TestSubscriptionsSelectByPrefix(t *testing.T) {
	p := start(t, Config{Topic: "kv@pod", Endpoint: "ipc://" + filepath.Join(t.TempDir(), "s")})
	if p.ReplayEndpoint() != "" {
		t.Error("a replay endpoint that nobody asked for")
	}
	c := dial(t, p.Endpoint(), zmtp.Sub)
	for _, prefix := range []string{"other", "kv@"} {
		if err := c.Subscribe(prefix); err != nil {
			t.Fatal(err)
		}
	}
	subscribers(t, p, 1)
	p.Publish([]byte("a"))
	if have, want := next(t, c), []string{"kv@pod", number(0), "a"}; !slices.Equal(have, want) {
		t.Errorf("%q, want %q", have, want)
	}
	if err := c.WriteMessage([]byte("\x00kv@")); err != nil { // no more of these
		t.Fatal(err)
	}
	subscribers(t, p, 0)
}

func TestBothFormsOfReplay(t *testing.T) {
	for _, withTopic := range []bool{false, true} {
		p := start(t, Config{Topic: "t", Buffer: 3, WithTopic: withTopic})
		for i := range 10 {
			p.Publish(fmt.Append(nil, i))
		}
		c := dial(t, p.ReplayEndpoint(), zmtp.Dealer)
		ask := func(seq uint64, want ...uint64) {
			t.Helper()
			if err := c.WriteMessage(nil, []byte(number(seq))); err != nil {
				t.Fatal(err)
			}
			for _, n := range want {
				frames := []string{"", number(n), fmt.Sprint(n)}
				if withTopic {
					frames = []string{"", "t", number(n), fmt.Sprint(n)}
				}
				if have := next(t, c); !slices.Equal(have, frames) {
					t.Fatalf("%q, want %q", have, frames)
				}
			}
			end := []string{"", string(bytes.Repeat([]byte{0xff}, 8)), ""}
			if withTopic {
				end = append([]string{""}, end...)
			}
			if have := next(t, c); !slices.Equal(have, end) {
				t.Fatalf("end %q, want %q", have, end)
			}
		}
		ask(0, 7, 8, 9)
		ask(9, 9)
		ask(10)
		if err := c.WriteMessage([]byte("what?")); err != nil { // ignored, as engines do
			t.Fatal(err)
		}
		ask(8, 8, 9)
	}
}

func TestASubscriberThatDoesNotReadLosesMessages(t *testing.T) {
	p := start(t, Config{HWM: 2})
	c := dial(t, p.Endpoint(), zmtp.Sub)
	if err := c.Subscribe(""); err != nil {
		t.Fatal(err)
	}
	subscribers(t, p, 1)
	const n = 200
	for range n { // 200 MB: more than any socket takes
		p.Publish(make([]byte, 1<<20))
	}
	got := 0
	for seq := ""; seq < number(n); got++ {
		at := next(t, c)[1]
		if at <= seq && got > 0 {
			t.Fatalf("number %x after %x", at, seq)
		}
		seq = at
		p.Publish([]byte("there is room again"))
	}
	if got > n/2 {
		t.Fatalf("%d messages came before the first of those published later, of %d", got, n)
	}
}
