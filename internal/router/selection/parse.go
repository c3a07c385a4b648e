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
	if o.p != nil {
		return o.p
	}
	err := o.r.Err()
	if errors.Is(err, jsonscan.ErrType) {
		o.p = edge.Bad(o.field, edge.WrongType, "must be "+want)
	} else {
		o.p = edge.Bad("body", edge.MalformedJSON, err.Error())
	}
	return o.p
}

func (o *object) refuse(field, reason, message string) {
	if o.p == nil {
		o.p = edge.Bad(field, reason, message)
	}
}

// raw reads a value of any kind.
func (o *object) raw(want string) string {
	if o.p != nil {
		return ""
	}
	text := o.r.Raw()
	if o.r.Err() != nil {
		o.fault(want)
	}
	return string(text)
}

// text reads a text.
func (o *object) text() string {
	if o.p != nil {
		return ""
	}
	b := o.r.Str()
	switch {
	case o.r.Err() != nil:
		o.fault("a text")
	case len(b) > maxText:
		o.refuse(o.field, edge.OutOfRange, "longer than "+strconv.Itoa(maxText)+" bytes")
	default:
		return string(b)
	}
	return ""
}

func (o *object) bool() bool {
	switch text := o.raw("true or false"); {
	case o.p != nil:
	case text == "true" || text == "false":
		return text == "true"
	default:
		o.refuse(o.field, edge.WrongType, "must be true or false")
	}
	return false
}

// float reads a number in lo … hi.
func (o *object) float(lo, hi float64) float64 {
	text := o.raw("a number")
	if o.p != nil {
		return 0
	}
	v, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange):
		o.refuse(o.field, edge.WrongType, "must be a number")
	case v < lo || v > hi || math.IsNaN(v):
		o.refuse(o.field, edge.OutOfRange, "must be between "+strconv.FormatFloat(lo, 'g', -1, 64)+" and "+strconv.FormatFloat(hi, 'g', -1, 64))
	}
	return v
}

// uint reads a whole number of at most hi, or one as a decimal text.
func (o *object) uint(hi uint64) uint64 { return o.whole(o.field, hi, false) }

// whole reads a whole number, also written as a text; signed takes negative ones
// too, as the two's complement.
func (o *object) whole(field string, hi uint64, signed bool) uint64 {
	text := strings.Trim(o.raw("a whole number"), `"`)
	if o.p != nil {
		return 0
	}
	v, err := strconv.ParseUint(text, 10, 64)
	if err == nil && v <= hi {
		return v
	}
	if signed {
		if v, err := strconv.ParseInt(text, 10, 64); err == nil {
			return uint64(v)
		}
	}
	reason := edge.OutOfRange
	if f, ferr := strconv.ParseFloat(text, 64); ferr != nil && !errors.Is(ferr, strconv.ErrRange) {
		reason = edge.WrongType
	} else if strings.ContainsAny(text, ".eE") {
		reason = edge.NotInteger
	} else if f < 0 && !signed {
		reason = edge.Negative
	}
	o.refuse(field, reason, "must be a whole number between 0 and "+strconv.FormatUint(hi, 10))
	return 0
}

// list reads an array by calling each for every element.
func (o *object) list(limit int, each func(field string)) {
	if o.p != nil {
		return
	}
	if !o.r.Open('[') {
		o.fault("an array")
		return
	}
	n := 0
	for first := true; o.p == nil && o.r.More(']', &first); n++ {
		if n >= limit {
			o.p = edge.TooManyElements(o.field, limit)
			return
		}
		each(o.field)
		if o.p != nil && o.p.Field == o.field {
			o.p.Field += "[" + strconv.Itoa(n) + "]"
		}
	}
	if o.p == nil && o.r.Err() != nil {
		o.fault("an array")
	}
}

func (o *object) hashes(limit int) []uint64 {
	list := []uint64{}
	o.list(limit, func(f string) { list = append(list, o.whole(f, math.MaxUint64, true)) })
	return list
}

func (o *object) ids(limit int) []uint64 {
	list := []uint64{}
	o.list(limit, func(f string) { list = append(list, o.whole(f, math.MaxUint64, false)) })
	return list
}

func (o *object) tokens(limit int) []uint32 {
	list := []uint32{}
	o.list(limit, func(f string) { list = append(list, uint32(o.whole(f, math.MaxUint32, false))) })
	return list
}
