package proxy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/route"
)

// manner is what a choice may come to besides a worker.
type manner uint8

const (
	hasty   manner = iota // nothing: it takes what is best now
	patient                 // route.ErrLater
	settled                 // the same, but the others have been heard
)

// hearOthers chooses once other routers, which choose at this moment, have been heard.
func (p *Proxy) hearOthers(ctx context.Context, q *call, best *route.Pair) (route.Pair, error) {
	timer := time.NewTimer(best.Decode.Settle)
	defer timer.Stop()
	select {
	case <-timer.C:
		return p.chooseNow(ctx, q, settled)
	case <-ctx.Done():
		return route.Pair{}, ctx.Err()
	}
}

// waits reports whether a request is to try again later.
func waits(err error) bool {
	return errors.Is(err, route.ErrOverloaded) || errors.Is(err, route.ErrLater)
}

// chooseLast is for a request that may wait no more: it takes what is best now, if anything.
func (p *Proxy) chooseLast(ctx context.Context, q *call, why error) (route.Pair, error) {
	best, err := p.chooseNow(ctx, q, hasty)
	if errors.Is(err, route.ErrOverloaded) {
		err = fmt.Errorf("%w, %w", route.ErrOverloaded, why)
	}
	return best, err
}
