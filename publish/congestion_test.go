package publish

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
)

// slowServer stores one message after the other for all its publishers, copies as slowly
// as others, and refuses what it has no room to queue.
type slowServer struct {
	every time.Duration // a message
	room  int
	queue chan func()

	mu            sync.Mutex
	seen          map[string]bool
	asked, copies int
	refused       int
}

func newSlowServer(every time.Duration, room int) *slowServer {
	return &slowServer{every: every, room: room, queue: make(chan func(), room), seen: make(map[string]bool)}
}

// run works until the queue is closed; an idle server takes the next at once.
func (s *slowServer) run() {
	timer := time.NewTimer(0)
	for one := range s.queue {
		<-timer.C
		one()
		timer.Reset(s.every)
	}
}

func (s *slowServer) counts() (stored, asked, copies, refused int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.seen), s.asked, s.copies, s.refused
}

// slowStream is one publisher's way to the server.
type slowStream struct {
	*fakeStream
	server *slowServer
}

func (f *slowStream) publish(_ string, msg *message) error {
	begun, end := time.Now(), outcome{seq: msg.seq, try: msg.tries}
	s := f.server
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	select {
	case s.queue <- func() {
		s.mu.Lock()
		end.ack = &jetstream.PubAck{Stream: "s", Duplicate: s.seen[msg.id]}
		if s.seen[msg.id] = true; end.ack.Duplicate {
			s.copies++
		}
		s.mu.Unlock()
		end.took = time.Since(begun)
		f.add(end)
	}:
	default:
		s.refused++
		end.err = &jetstream.APIError{Code: 429, ErrorCode: 10167, Description: "too many requests"}
		f.add(end)
	}
	return nil
}

// A fleet that publishes four times what its server can take is late, and no worse: what the
// server does is what is asked of it and no copies, and with a load that it can take all is
// as it was before.
func TestAFleetInOverloadDegradesAndRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newSlowServer(2*time.Millisecond, 5000)
		var working, publishing sync.WaitGroup
		working.Go(server.run)
		var fleet []*Publisher
		for range 100 {
			cfg := testConfig(t, func(c *Config) { c.StreamWait = -1; c.BatchEvents = 1 })
			fleet = append(fleet, start(cfg, &slowStream{newFakeStream(1, 0), server}))
		}
		// load has each worker publish that often.
		load := func(every, d time.Duration) {
			for i, p := range fleet {
				publishing.Go(func() {
					time.Sleep(every * time.Duration(i) / time.Duration(len(fleet)))
					for n := range uint64(d / every) {
						if err := p.Removed(t.Context(), 0, event.Device, []uint64{n}); err != nil {
							t.Error(err)
						}
						time.Sleep(every)
					}
				})
			}
			publishing.Wait()
		}
		const heavy = time.Minute
		load(50*time.Millisecond, heavy)
		stored, asked, copies, refused := server.counts()
		t.Logf("after overload: %d messages stored, of %d that came, %d copies, %d refused", stored, asked, copies, refused)
		if could := int(heavy / server.every); stored < could*8/10 {
			t.Errorf("%d messages stored in overload, and the server could store %d", stored, could)
		}
		load(time.Second, 4*heavy) // the rest of the heavy load's events too
		begun := time.Now()
		for _, p := range fleet {
			if err := p.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("the server was idle again, and the last events were stored %v late", took)
		}
		stored, asked, copies, refused = server.counts()
		t.Logf("at the end: %d messages stored, of %d that came, %d copies, %d refused", stored, asked, copies, refused)
		if copies > stored/20 {
			t.Errorf("%d copies of %d messages", copies, stored)
		}
		for _, p := range fleet {
			if err := p.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		close(server.queue)
		working.Wait()
	})
}

// Where acknowledgements take what they do, copies come late enough; after copies in vain
// the waits double, up to the most.
func TestPatienceGrowsAndComesBack(t *testing.T) {
	c := congestion{window: 8, full: 8}
	within := func(copies int, least, most time.Duration) {
		t.Helper()
		for range 100 {
			if d := c.patience(copies, time.Minute); d < least || d > most {
				t.Fatalf("%v after %d copies: %v, want %v to %v", c, copies, d, least, most)
			}
		}
	}
	within(0, leastPatience*3/4, leastPatience)
	within(3, 8*leastPatience*3/4, 8*leastPatience)
	within(100, time.Minute*3/4, time.Minute)
	c.failed()
	for n := range 8 {
		c.landed(4*time.Second, 0)
		if want := min(n+2, 8); c.window != want {
			t.Errorf("a window of %d, want %d", c.window, want)
		}
	}
	within(0, 3*time.Second, 16*time.Second)
	for range 50 {
		c.landed(time.Millisecond, 0)
	}
	within(0, leastPatience*3/4, leastPatience)
	if c.failed(); c.window != 1 {
		t.Errorf("a window of %d after a failure", c.window)
	}
	if c.landed(time.Millisecond, 7); c.window != 1 {
		t.Errorf("a window of %d while more is in flight", c.window)
	}
}
