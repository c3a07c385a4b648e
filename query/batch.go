package query

import (
	"strconv"

	"github.com/kvatlas/kvatlas/internal/wire/jsonscan"
)

// batch answers several requests at once: {"requests":[…]} by {"answers":[…]},
// in order. One that is refused has its error in its place. maxTokens bounds
// the elements of all requests together.
func (q *finder) batch(ix Index, body []byte, maxRequests, maxTokens int, dst []byte, refused func(*Problem)) ([]byte, *Problem) {
	var in jsonscan.Reader
	in.Reset(body)
	if !in.Open('{') {
		return dst, fieldProblem(in.Err(), "body", "a JSON object")
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
			return dst, bad(shorten(name), reasonUnknownField, "no such field; there is requests")
		case given:
			return dst, bad("requests", reasonDuplicateField, "the field is given twice")
		}
		if given = true; in.Peek() != '[' {
			in.Open('[')
			return dst, fieldProblem(in.Err(), "requests", "an array")
		}
		in.Open('[')
		for first := true; in.More(']', &first); n++ {
			if n >= maxRequests {
				return dst, tooMany("requests", maxRequests)
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
				dst = appendProblem(dst, p)
			}
			dst = dst[:len(dst)-1] // the line end
		}
	}
	if in.End(); in.Err() != nil {
		return dst, fieldProblem(in.Err(), "body", "JSON")
	}
	if !given {
		return dst, bad("requests", reasonMissing, "give an array of at most "+strconv.Itoa(maxRequests)+" requests")
	}
	q.asked, q.listed = asked, listed
	return append(dst, "]}\n"...), nil
}
