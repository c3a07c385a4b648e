package query

import (
	"strconv"

	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/wire/jsonscan"
)

// batch answers several requests at once: {"requests":[…]} by {"answers":[…]},
// in order. One that is refused has its error in its place. maxTokens bounds
// the elements of all requests together.
func (q *finder) batch(ix Index, body []byte, maxRequests, maxTokens int, dst []byte, refused func(*edge.Problem)) ([]byte, *edge.Problem) {
	var in jsonscan.Reader
	in.Reset(body)
	if !in.Open('{') {
		return dst, edge.FieldProblem(in.Err(), "body", "a JSON object")
	}
	var asked, listed int64
	dst = append(dst, `{"answers":[`...)
	given, n := false, 0
	for first := true; in.More('}', &first); {
		name := in.Key()
		if in.Err() != nil {
			break
		}
		switch {
		case string(name) != "requests":
			return dst, edge.Bad(shorten(name), edge.UnknownField, "no such field; there is requests")
		case given:
			return dst, edge.Bad("requests", edge.DuplicateField, "the field is given twice")
		}
		if given = true; in.Peek() != '[' {
			in.Open('[')
			return dst, edge.FieldProblem(in.Err(), "requests", "an array")
		}
		in.Open('[')
		for first := true; in.More(']', &first); n++ {
			if n >= maxRequests {
				return dst, edge.TooManyElements("requests", maxRequests)
			}
			one := in.Raw()
			if in.Err() != nil {
				break
			}
			if n > 0 {
				dst = append(dst, ',')
			}
			p := q.req.parse(one, maxTokens)
			maxTokens -= len(q.req.tokens) + len(q.req.hashes)
			if p == nil {
				dst, p = q.appendMatches(ix, dst)
				asked, listed = asked+q.asked, listed+q.listed
			}
			if p != nil {
				refused(p)
				dst = append(dst, p.JSON()...)
			}
			dst = dst[:len(dst)-1] // the line end
		}
	}
	if in.End(); in.Err() != nil {
		return dst, edge.FieldProblem(in.Err(), "body", "JSON")
	}
	if !given {
		return dst, edge.Bad("requests", edge.Missing, "give an array of at most "+strconv.Itoa(maxRequests)+" requests")
	}
	q.asked, q.listed = asked, listed
	return append(dst, "]}\n"...), nil
}
