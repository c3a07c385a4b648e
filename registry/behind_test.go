package registry

import (
	"errors"
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/natstest"
)

// What operators and HTTP clients ask for goes by what the leader has: a server of a cluster that is behind says of a
// worker that was drained, or registered, a moment ago that it was not.
func TestAServerThatIsBehind(t *testing.T) {
	b := startBroker(t, t.TempDir())
	bucket, err := OpenBucket(deadline(t), b.Conn(), "default", BucketConfig{})
	if err != nil {
		t.Fatal(err)
	}
	natstest.Behind(t, b.Conn(), "KV_"+BucketName("default"), "")
	if err := bucket.Drain(deadline(t), 1, "me"); err != nil {
		t.Fatal(err)
	}
	if err := bucket.Resume(deadline(t), 1); err != nil {
		t.Error(err)
	}
	if err := bucket.Resume(deadline(t), 1); !errors.Is(err, ErrAlready) {
		t.Error("it is resumed, and once more:", err)
	}
	w := testWorker(2)
	w.Ranks = w.Ranks[:1]
	if _, _, err := bucket.addHTTP(deadline(t), w); err != nil {
		t.Fatal(err)
	}
	if _, again, err := bucket.addHTTP(deadline(t), w); err != nil || !again {
		t.Errorf("registered once more: repeated %v, %v", again, err)
	}
	if err := bucket.Remove(deadline(t), 2, false); err != nil {
		t.Error(err)
	}
	if c, err := bucket.Read(deadline(t)); err != nil || len(c.Workers)+len(c.Drained) != 0 {
		t.Errorf("the bucket has %+v, %v", c, err)
	}
}
