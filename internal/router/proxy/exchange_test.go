package proxy

import (
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
		req := requestOf(ctx, http.MethodPost, url.URL{Scheme: "http", Host: "h"}, upstream.Payload{Pieces: [][]byte{body[:]}})
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
