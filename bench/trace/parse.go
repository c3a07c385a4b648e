package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Limits on what a line may say. They keep arithmetic on lengths far from
// overflow and are beyond any real prompt.
const (
	maxTokens = 1 << 30                             // of a prompt or an answer
	maxMillis = float64(100*365*24*time.Hour) / 1e6 // of a timestamp
)

var errTruncated = errors.New("the line ends inside a JSON value")

// parser reads one JSON object of a known shape. Traces hold tens of millions
// of ids, which is why this is not encoding/json; it accepts the same grammar.
type parser struct {
	b []byte
	i int
}

// parseLine fills r from one line. Unknown fields are skipped; of a repeated
// field the last one counts.
func parseLine(line []byte, r *Request) error {
	*r = Request{IDs: r.IDs[:0], OutputIDs: r.OutputIDs[:0], Session: r.Session}
	p := parser{b: line}
	const (
		hasTimestamp = 1 << iota
		hasInput
		hasOutput
		hasIDs
		hasSession
	)
	seen := 0
	err := p.object(func(key string) (err error) {
		switch key {
		case "timestamp":
			seen |= hasTimestamp
			r.Arrival, err = p.millis()
		case "input_length":
			seen |= hasInput
			r.Input, err = p.length()
		case "output_length":
			seen |= hasOutput
			r.Output, err = p.length()
		case "hash_ids":
			seen |= hasIDs
			r.IDs, err = p.ids(r.IDs[:0])
		case "session_id":
			seen |= hasSession
			r.Session, err = p.session(r.Session)
		default:
			err = p.skip(0)
		}
		if err != nil {
			return fmt.Errorf("field %s: %w", strconv.Quote(key), err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if p.space(); p.i < len(p.b) {
		return fmt.Errorf("unexpected %q after the JSON object", p.b[p.i])
	}
	if seen&hasSession == 0 {
		r.Session = ""
	}
	for i, name := range []string{"timestamp", "input_length", "output_length", "hash_ids"} {
		if seen&(1<<i) == 0 {
			return fmt.Errorf("field %q is missing", name)
		}
	}
	return nil
}

// object reads an object and calls field at each value.
func (p *parser) object(field func(key string) error) error {
	if err := p.expect('{'); err != nil {
		return err
	}
	if p.space(); p.at('}') {
		p.i++
		return nil
	}
	for {
		p.space()
		raw, escaped, err := p.str()
		if err != nil {
			return err
		}
		key := string(raw)
		if escaped {
			if key, err = unescape(raw); err != nil {
				return err
			}
		}
		if err := p.expect(':'); err != nil {
			return err
		}
		p.space()
		if err := field(key); err != nil {
			return err
		}
		p.space()
		switch {
		case p.at(','):
			p.i++
		case p.at('}'):
			p.i++
			return nil
		default:
			return p.unexpected("',' or '}'")
		}
	}
}

func (p *parser) space() {
	for p.i < len(p.b) {
		switch p.b[p.i] {
		case ' ', '\t', '\r', '\n':
			p.i++
		default:
			return
		}
	}
}

func (p *parser) at(c byte) bool { return p.i < len(p.b) && p.b[p.i] == c }

func (p *parser) expect(c byte) error {
	p.space()
	if !p.at(c) {
		return p.unexpected(fmt.Sprintf("%q", c))
	}
	p.i++
	return nil
}

func (p *parser) unexpected(want string) error {
	if p.i >= len(p.b) {
		return errTruncated
	}
	return fmt.Errorf("column %d: %q where %s is expected", p.i+1, p.b[p.i], want)
}

// number returns the text of a JSON number and whether it is an integer.
func (p *parser) number() (text []byte, integer bool, err error) {
	start := p.i
	digits := func() bool {
		from := p.i
		for p.i < len(p.b) && p.b[p.i]-'0' <= 9 {
			p.i++
		}
		return p.i > from
	}
	if p.at('-') {
		p.i++
	}
	if p.at('0') {
		p.i++
	} else if !digits() {
		return nil, false, p.unexpected("a number")
	}
	integer = true
	if p.at('.') {
		p.i++
		if integer = false; !digits() {
			return nil, false, p.unexpected("a digit")
		}
	}
	if p.at('e') || p.at('E') {
		p.i++
		if p.at('+') || p.at('-') {
			p.i++
		}
		if integer = false; !digits() {
			return nil, false, p.unexpected("a digit")
		}
	}
	return p.b[start:p.i], integer, nil
}

func (p *parser) millis() (time.Duration, error) {
	text, _, err := p.number()
	if err != nil {
		return 0, err
	}
	ms, err := strconv.ParseFloat(string(text), 64)
	if err != nil || !(ms >= 0 && ms <= maxMillis) {
		return 0, fmt.Errorf("%s is not a time in ms between 0 and %.0f", text, maxMillis)
	}
	return time.Duration(math.Round(ms * 1e6)), nil
}

func (p *parser) length() (int, error) {
	text, integer, err := p.number()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil || !integer || n > maxTokens {
		return 0, fmt.Errorf("%s is not a whole number between 0 and %d", text, maxTokens)
	}
	return int(n), nil
}

func (p *parser) ids(ids []uint64) ([]uint64, error) {
	if err := p.expect('['); err != nil {
		return ids, err
	}
	if p.space(); p.at(']') {
		p.i++
		return ids, nil
	}
	for {
		p.space()
		b, i, v := p.b, p.i, uint64(0) // in registers: most of a trace is read here
		for i < len(b) {
			d := uint64(b[i] - '0')
			if d > 9 {
				break
			}
			if v > (math.MaxUint64-d)/10 {
				return ids, fmt.Errorf("element %d does not fit 64 bits", len(ids))
			}
			v = v*10 + d
			i++
		}
		if i == p.i || b[p.i] == '0' && i > p.i+1 {
			return ids, fmt.Errorf("element %d is not a whole number from 0 on: %w", len(ids), p.unexpected("a digit"))
		}
		ids = append(ids, v)
		p.i = i
		p.space()
		switch {
		case p.at(','):
			p.i++
		case p.at(']'):
			p.i++
			return ids, nil
		default:
			return ids, p.unexpected("',' or ']'")
		}
	}
}

// session reads a name: a string, or a number whose digits are the name, or
// null. last is returned again when it is the same, which saves allocating it.
func (p *parser) session(last string) (string, error) {
	switch {
	case p.at('"'):
		raw, escaped, err := p.str()
		if err != nil {
			return "", err
		}
		if escaped {
			return unescape(raw)
		}
		if string(raw) == last {
			return last, nil
		}
		return string(raw), nil
	case p.at('n'):
		return "", p.word("null")
	default:
		text, _, err := p.number()
		return string(text), err
	}
}

// str returns the bytes between the quotes, and whether there are escapes.
func (p *parser) str() (raw []byte, escaped bool, err error) {
	if !p.at('"') {
		return nil, false, p.unexpected("a string")
	}
	p.i++
	start := p.i
	for p.i < len(p.b) {
		switch c := p.b[p.i]; {
		case c == '"':
			raw = p.b[start:p.i]
			p.i++
			return raw, escaped, nil
		case c == '\\':
			escaped = true
			p.i += 2
		case c < ' ':
			return nil, false, p.unexpected("a printable character")
		default:
			// Invalid UTF-8 is for unescape to replace, as encoding/json does.
			escaped = escaped || c >= 0x80
			p.i++
		}
	}
	return nil, false, errTruncated
}

// unescape decodes what is between the quotes of a JSON string.
func unescape(raw []byte) (string, error) {
	quoted := make([]byte, 0, len(raw)+2)
	quoted = append(append(append(quoted, '"'), raw...), '"')
	var s string
	if err := json.Unmarshal(quoted, &s); err != nil {
		return "", fmt.Errorf("string: %w", err)
	}
	return s, nil
}

func (p *parser) word(w string) error {
	if len(p.b)-p.i < len(w) || string(p.b[p.i:p.i+len(w)]) != w {
		return p.unexpected(w)
	}
	p.i += len(w)
	return nil
}

// skip passes over any value. Nesting is bounded, as no trace needs it.
func (p *parser) skip(depth int) error {
	if depth > 32 {
		return errors.New("nested deeper than 32 levels")
	}
	p.space()
	if p.i >= len(p.b) {
		return errTruncated
	}
	switch p.b[p.i] {
	case '{':
		return p.object(func(string) error { return p.skip(depth + 1) })
	case '[':
		p.i++
		if p.space(); p.at(']') {
			p.i++
			return nil
		}
		for {
			if err := p.skip(depth + 1); err != nil {
				return err
			}
			p.space()
			switch {
			case p.at(','):
				p.i++
			case p.at(']'):
				p.i++
				return nil
			default:
				return p.unexpected("',' or ']'")
			}
		}
	case '"':
		raw, escaped, err := p.str()
		if err == nil && escaped {
			_, err = unescape(raw)
		}
		return err
	case 't':
		return p.word("true")
	case 'f':
		return p.word("false")
	case 'n':
		return p.word("null")
	default:
		_, _, err := p.number()
		return err
	}
}
