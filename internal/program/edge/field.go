package edge

import (
	"errors"
	"strconv"

	"github.com/kvatlas/kvatlas/internal/wire/jsonscan"
)

// FieldProblem turns what a jsonscan.Reader says of a field's value into a problem.
// What is not JSON is the body's fault, but for a text of a field.
func FieldProblem(err error, field, want string) *Problem {
	reason := WrongType
	switch {
	case !errors.Is(err, jsonscan.ErrType):
		if want != "a text" {
			field = "body"
		}
		return Bad(field, MalformedJSON, err.Error())
	case errors.Is(err, jsonscan.ErrNegative):
		reason = Negative
	case errors.Is(err, jsonscan.ErrNotInteger):
		reason = NotInteger
	case errors.Is(err, jsonscan.ErrRange):
		reason = OutOfRange
	}
	return Bad(field, reason, "must be "+want)
}

// ArrayProblem does so for an array, or its element at i; nil without an error.
func ArrayProblem(err error, field string, isArray bool, i int, want string, limit int) *Problem {
	switch {
	case err == nil:
		return nil
	case !isArray:
		want = "an array"
	case errors.Is(err, jsonscan.ErrTooMany):
		return TooManyElements(field, limit)
	default:
		field += "[" + strconv.Itoa(i) + "]"
	}
	return FieldProblem(err, field, want)
}
