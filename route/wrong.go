package route

import "github.com/kvatlas/kvatlas/route/breaker"

// A worker that calls a request wrong is right, as a rule: the client sent it. One that says so of all that it gets is
// not, and answers at once, so that it looks idle and draws what others should have.

// tally counts what workers said of requests: that they are served, or that they are wrong.
type tally struct{ well, wrong uint64 }

// maxWrong is the most requests in a row that a worker must call wrong before it is doubted,
// where others were found to say the same.
const maxWrong = 64

// wrongAlone is how many requests in a row a worker must call wrong before it is doubted where no
// other can be asked about them: so many of one client's come seldom without another's between them.
const wrongAlone = 16

// callsWrong notes that the worker calls a request wrong, and reports whether it does so of all that it gets.
func (r *Router) callsWrong(h *health, alone bool) bool {
	if h.wrong == 0 {
		h.before = r.said
	}
	h.wrong++
	r.said.wrong++
	c := &r.settings.Breaker
	if alone && (h.wrong < wrongAlone || r.said.well-h.before.well <= r.said.wrong-h.before.wrong-uint64(h.wrong)) {
		return false
	}
	return c.Failures > 0 && h.wrong >= max(c.Failures, h.wrongMost)
}

// agreed notes that another worker calls the request wrong, too. Who sends only such requests
// has them asked twice ever more seldom.
func (h *health) agreed(c *breaker.Config) {
	h.wrong, h.wrongMost = 0, min(2*max(c.Failures, h.wrongMost), maxWrong)
}
