package proxy

import (
	"context"
	"net/http"

	"github.com/kvatlas/kvatlas/internal/router/upstream"
)

// kept is what a client's connection has for its next request: nothing while one uses it.
type kept struct {
	*upstream.Exchange
	under context.Context //nolint:containedctx // that of the connection's requests
	place *any            // of the connection
}

// exchangeOf returns the context of a request to an engine, and what ends it: of what the connection's
// last one has left, if it could. left is nil where there is no place for that.
func exchangeOf(w http.ResponseWriter, r *http.Request) (ctx context.Context, cancel context.CancelFunc, left *kept) {
	if rec, ok := w.(*recorded); ok {
		w = rec.ResponseWriter
	}
	under := r.Context()
	c, ok := w.(interface{ Kept() *any })
	if !ok {
		ctx, cancel = context.WithCancel(under)
		return ctx, cancel, nil
	}
	place := c.Kept()
	left, ok = (*place).(*kept)
	if *place = nil; !ok || left.under != under || left.Err() != nil {
		left = &kept{upstream.NewExchange(under), under, place}
	}
	return left.Exchange, left.Cancel, left
}

// leave leaves it to the connection's next request; see upstream.Exchange for when it may.
func (k *kept) leave() { *k.place = k }

// desk is what one request after another is answered at.
type desk struct {
	call call
	wait wait
}

// waiting returns a wait that is over.
func (d *desk) waiting() *wait {
	if d == nil {
		return new(wait)
	}
	return &d.wait
}
