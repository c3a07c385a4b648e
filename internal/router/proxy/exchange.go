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

// placeOf returns where a client's connection keeps it; nil if there is no such place.
func placeOf(w http.ResponseWriter) *any {
	if rec, ok := w.(*recorded); ok {
		w = rec.ResponseWriter
	}
	if c, ok := w.(interface{ Kept() *any }); ok {
		return c.Kept()
	}
	return nil
}

// client is who waits for an answer.
type client interface {
	// Gone reports whether it has left, and ends the context of its request then.
	Gone() bool
}

// clientAt returns the client; nil if nobody can look whether it is there.
func clientAt(w http.ResponseWriter) client {
	if rec, ok := w.(*recorded); ok {
		w = rec.ResponseWriter
	}
	c, _ := w.(client)
	return c
}

// gone looks whether the client has left, which ends the request's context. Who looks after all clients
// (package downstream) would see it a little later, when an engine has been asked for nobody, or somebody's turn is taken.
func (q *call) gone() bool { return q.who != nil && q.who.Gone() }

// exchangeOf returns the context of a request to an engine, and what ends it: what the connection's
// last one has left at that place, if it could. left is nil where there is no place.
func exchangeOf(under context.Context, place *any) (ctx context.Context, cancel context.CancelFunc, left *kept) {
	if place == nil {
		ctx, cancel = context.WithCancel(under)
		return ctx, cancel, nil
	}
	left, ok := (*place).(*kept)
	if *place = nil; !ok || left.under != under || left.Err() != nil {
		if ok {
			left.Cancel() // else the connection's context has it until the connection ends
		}
		left = &kept{upstream.NewExchange(under), under, place}
	}
	return left.Exchange, left.Cancel, left
}

// leave leaves it to the connection's next request; see upstream.Exchange for when it may.
func (k *kept) leave() {
	k.Forget()
	*k.place = k
}

// desk is what one request after another is answered at.
type desk struct {
	call call
	wait wait // for its first byte
}
