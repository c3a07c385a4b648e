package proxy

import (
	"context"
	"net/http"
	"net/url"
	"runtime"
	"testing"
	"weak"

	"github.com/kvatlas/kvatlas/internal/router/upstream"
)

// What a connection keeps for its next request holds nothing of the last one's body: it may be
// idle for long.
func TestWhatIsLeftHoldsNoBody(t *testing.T) {
	var place any
	ask := func() weak.Pointer[[4096]byte] {
		body := new([4096]byte)
		ctx, _, left := exchangeOf(t.Context(), &place)
		req := upstream.NewRequest(ctx, http.MethodPost, url.URL{Scheme: "http", Host: "h"}, upstream.Payload{Pieces: [][]byte{body[:]}})
		if req.ContentLength != int64(len(body)) || req.Body == nil {
			t.Errorf("%+v", req)
		}
		left.leave()
		return weak.Make(body)
	}
	body := ask()
	kept := place
	if runtime.GC(); body.Value() != nil {
		t.Error("the body is held")
	}
	if ask(); place != kept {
		t.Error("it is not used again")
	}
}

// What a connection's last request has left is for another one of the same context. That of one with a
// caller or a trace is another one's for each request: what is left then ends, and does not stay with
// the connection for as long as that lasts.
func TestWhatIsLeftOfOtherContextsEnds(t *testing.T) {
	type key struct{}
	var place any
	conn, leave := context.WithCancel(t.Context())
	defer leave()
	before := (*kept)(nil)
	for i := range 3 {
		of := context.WithValue(conn, key{}, i)
		_, _, left := exchangeOf(of, &place)
		switch {
		case before == left || left.Err() != nil || left.Value(key{}) != i:
			t.Fatalf("%d: %v, that of %v", i, left.Err(), left.Value(key{}))
		case before != nil && before.Err() == nil:
			t.Errorf("%d: the one before goes on", i)
		}
		left.leave()
		if _, _, again := exchangeOf(of, &place); again != left {
			t.Errorf("%d: it is not used again", i)
		}
		left.leave()
		before = left
	}
}
