package publish

import (
	"testing"

	"github.com/kvatlas/kvatlas/event"
)

// A name that the stream's metadata cannot have is refused, before a stream is made that nobody could publish into.
func TestNamesAreText(t *testing.T) {
	for _, sp := range []event.Space{{Model: "a\xff"}, {Model: "m", Group: "\xff"}, {}} {
		sp.BlockSize = 16
		if _, err := (Config{Space: sp}).withDefaults(); err == nil {
			t.Errorf("%+v is taken", sp)
		}
	}
	if _, err := (Config{Space: event.Space{Model: "模型", BlockSize: 16}}).withDefaults(); err != nil {
		t.Error(err)
	}
}
