package proxy

import (
	"context"
	"errors"
	"time"

	"github.com/kvatlas/kvatlas/route"
)

// hearOthers chooses once other routers, which choose at this moment, have been heard.
func (p *Proxy) hearOthers(ctx context.Context, q *call, best *route.Pair) (route.Pair, error) {
	timer := time.NewTimer(best.Decode.Settle)
	defer timer.Stop()
	select {
	case <-timer.C:
		return p.chooseNow(ctx, q, true)
	case <-ctx.Done():
		return route.Pair{}, ctx.Err()
	}
}

// waits reports whether a request is to try again later.
func waits(err error) bool {
	return errors.Is(err, route.ErrOverloaded) || errors.Is(err, route.ErrLater)
}
