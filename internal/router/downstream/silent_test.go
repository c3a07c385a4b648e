package downstream

import (
	"net/http"
	"os"
	"testing"
	"time"
)

// silent is a connection on which a text comes, and then nothing.
type silent struct {
	scripted
	timed int // deadlines for reading that were set
}

func (c *silent) Read(p []byte) (int, error) {
	if len(c.text) == 0 {
		return 0, os.ErrDeadlineExceeded
	}
	return c.scripted.Read(p)
}

func (c *silent) SetReadDeadline(time.Time) error {
	c.timed++
	return nil
}

// Who begins no request has its time once, whatever it may become.
func TestSilenceIsTimedOnce(t *testing.T) {
	for _, text := range []string{"", "P", preface[:5]} {
		s := New(Config{MaxHeader: inSize, ReadTimeout: time.Hour, WriteTimeout: time.Hour, IdleTimeout: time.Hour, Refused: func(string) {}, Handler: http.NotFoundHandler()})
		s.second = &handed{}
		c := &silent{scripted: scripted{text: []byte(text), piece: func() int { return 1 }}}
		if newConn(s, c).serve(); c.timed != 1 {
			t.Errorf("%q: %d times", text, c.timed)
		}
	}
}
