package proxy

import (
	"context"
	"time"

	"github.com/kvatlas/kvatlas/route"
)

// manner is what a choice may come to besides a worker.
type manner uint8

const (
	hasty   manner = iota // nothing: it takes what is best now
	patient               // route.ErrLater
	settled               // the same, but the others have been heard
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
