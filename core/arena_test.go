package core

import (
	"testing"

	"github.com/kvatlas/kvatlas/internal/hugemem"
)

// TestRoomIsAnnouncedWithWhatIsAhead: a big index has huge pages ready ahead, which it accounts, and which a step that
// makes it have one more is granted beforehand.
func TestRoomIsAnnouncedWithWhatIsAhead(t *testing.T) {
	x := NewRadix(Options{})
	more := 0
	for slabs := 1; slabs < 67; slabs++ {
		for x.arena.inUse < slabs*slabSegs-1 { // one is never handed out
			x.arena.alloc(1, 0, 0)
		}
		before, need, had := x.Memory().Total(), x.need(1), x.MappedBytes()
		x.arena.alloc(1, 0, 0)
		if took := x.Memory().Total() - before; took > need {
			t.Errorf("the slab after %d takes %d bytes, announced %d", slabs, took, need)
		}
		if x.MappedBytes() > had+hugemem.Size {
			more++
		}
	}
	if more != 1 {
		t.Errorf("pages were added to those ahead %d times", more)
	}
	x.arena.reset()
	if left := x.MappedBytes(); left != 0 {
		t.Errorf("%d bytes are mapped still", left)
	}
}
