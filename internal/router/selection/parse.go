package selection

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/wire/jsonscan"
)

// maxText bounds the texts in a request.
const maxText = 1024

// object reads one JSON object of one level. The first problem stays in p, and
// what is read after it is zero.
type object struct {
	r     jsonscan.Reader
	field string // that is being read
	p     *edge.Problem
}

// fields has what reads each field that a body may have.
type fields map[string]func(o *object)

// parse reads the body. A field that is null counts as absent.
func parse(body []byte, known fields) *edge.Problem {
	if !utf8.Valid(body) {
		return edge.Bad("body", edge.MalformedJSON, "not valid UTF-8")
	}
	o := &object{field: "body"}
	o.r.Reset(body)
	if !o.r.Open('{') {
		return o.fault("a JSON object")
	}
	seen := make(map[string]bool, 8)
	for first := true; o.r.More('}', &first); {
		name := string(o.r.Key())
		if o.r.Err() != nil {
			break
		}
		if len(name) > 64 {
			return edge.Bad(strings.ToValidUTF8(name[:64], "")+"…", edge.UnknownField, "no such field on this route")
		}
		if seen[name] {
			return edge.Bad(name, edge.DuplicateField, "the field is given twice")
		}
		seen[name] = true
		read := known[name]
		if read == nil {
			return edge.Bad(name, edge.UnknownField, "no such field on this route; there are "+known.names())
		}
		if o.field = name; !o.r.Null() && o.r.Err() == nil {
			read(o)
		}
		if o.p != nil {
			return o.p
		}
		o.field = "body"
	}
	if o.r.End(); o.r.Err() != nil {
		return o.fault("valid JSON")
	}
	return nil
}

func (f fields) names() string {
	return strings.Join(slices.Sorted(maps.Keys(f)), ", ")
}

// fault turns the reader's error into a problem of the field.
func (o *object) fault(want string) *edge.Problem {
	if o.p == nil {
		o.p = edge.FieldProblem(o.r.Err(), o.field, want)
	}
	return o.p
}

func (o *object) refuse(field, reason, message string) {
	if o.p == nil {
		o.p = edge.Bad(field, reason, message)
	}
}

// text reads a text.
func (o *object) text() string {
	if o.p != nil {
		return ""
	}
	b := o.r.Str()
	switch {
	case o.r.Err() != nil:
		_ = o.fault("a text")
	case len(b) > maxText:
		o.refuse(o.field, edge.OutOfRange, "longer than "+strconv.Itoa(maxText)+" bytes")
	default:
		return string(b)
	}
	return ""
}

func (o *object) bool() bool {
	v := o.r.Bool()
	if o.r.Err() != nil {
		_ = o.fault("true or false")
	}
	return v
}

// float reads a number in lo … hi.
func (o *object) float(lo, hi float64) float64 {
	text := o.r.Raw()
	if o.r.Err() != nil {
		_ = o.fault("a number")
		return 0
	}
	v, err := strconv.ParseFloat(string(text), 64)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange):
		o.refuse(o.field, edge.WrongType, "must be a number")
	case v < lo || v > hi || math.IsNaN(v):
		o.refuse(o.field, edge.OutOfRange, "must be between "+strconv.FormatFloat(lo, 'g', -1, 64)+" and "+strconv.FormatFloat(hi, 'g', -1, 64))
	}
	return v
}

// uint reads a whole number of at most hi, or one as a decimal text.
func (o *object) uint(hi uint64) uint64 {
	v := o.r.Whole(false)
	if o.r.Err() == nil && v > hi {
		o.r.Fail(jsonscan.ErrRange)
	}
	if o.r.Err() != nil {
		_ = o.fault(wholeUpTo(hi))
	}
	return v
}

func wholeUpTo(hi uint64) string { return "a whole number between 0 and " + strconv.FormatUint(hi, 10) }

// whole reads an array of whole numbers; signed takes negative ones too, as the two's
// complement.
func (o *object) whole(limit int, hi uint64, signed bool) []uint64 {
	isArray := o.r.Peek() == '['
	list := o.r.Uint64s([]uint64{}, limit, signed)
	if p := edge.ArrayProblem(o.r.Err(), o.field, isArray, len(list), wholeUpTo(hi), limit); o.p == nil {
		o.p = p
	}
	return list
}

func (o *object) hashes(limit int) []uint64 { return o.whole(limit, math.MaxUint64, true) }

func (o *object) ids(limit int) []uint64 { return o.whole(limit, math.MaxUint64, false) }

func (o *object) tokens(limit int) []uint32 {
	wide := o.whole(limit, math.MaxUint32, false)
	list := make([]uint32, len(wide))
	for i, v := range wide {
		if list[i] = uint32(v); v > math.MaxUint32 {
			o.refuse(o.field+"["+strconv.Itoa(i)+"]", edge.OutOfRange, "must be "+wholeUpTo(math.MaxUint32))
		}
	}
	return list
}
