package registry

import "testing"

func TestWhatIsWrongWithAReplay(t *testing.T) {
	for _, c := range []struct {
		replay       string
		replayDown   bool
		snapshot     string
		snapshotDown bool
		want         string
	}{
		{"", false, "", false, ReplayNone},
		{"r", false, "", false, ""},
		{"r", true, "", false, ReplayUnreachable},
		{"", false, "s", false, ""},
		{"", false, "s", true, SnapshotUnreachable},
		{"r", true, "s", false, ReplayUnreachable},
	} {
		if got := ReplayOf(c.replay, c.replayDown, c.snapshot, c.snapshotDown); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
