package chat

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/chat/jinja"
)

// schema writes JSON schemas as types, in the notation in which harmony shows functions'
// parameters to the model.
type schema struct {
	err   error
	depth int
}

// maxSchema bounds how deep schemas are nested, and maxTypes the bytes of types: each line is indented
// as deep as it stands, so that they may be much longer than the schemas.
const (
	maxSchema = 100
	maxTypes  = 4 << 20
)

// room reports whether what is written may go on.
func (s *schema) room(b *strings.Builder) bool {
	if b.Len() > maxTypes {
		s.err = &jinja.LimitError{What: "more text for its tools than it may write"}
	}
	return s.err == nil
}

// field is one of an object; missing where v is none.
func field(v jinja.Value, name string) jinja.Value {
	d, ok := v.AsDict()
	if !ok {
		return jinja.Value{}
	}
	return d.Get(name)
}

func (s *schema) typeOf(v jinja.Value, indent string) string {
	if s.depth++; s.depth > maxSchema {
		s.err = unsupported("a tool's parameters nested deeper than %d", maxSchema)
		return ""
	}
	defer func() { s.depth-- }()
	if variants, ok := field(v, "oneOf").AsList(); ok {
		var b strings.Builder
		for _, x := range variants {
			b.WriteString("\n" + indent + " | " + s.nullable(x, indent+"   "))
			b.WriteString(behind(s.notes(x, "", false)))
			if !s.room(&b) {
				return ""
			}
		}
		return b.String()
	}
	typ := field(v, "type")
	if list, ok := typ.AsList(); ok {
		var names []string
		for _, x := range list {
			if name, ok := x.AsString(); ok {
				if name == "integer" {
					name = "number"
				}
				names = append(names, name)
			}
		}
		if len(names) > 0 {
			return strings.Join(names, " | ")
		}
	}
	name, _ := typ.AsString()
	switch name {
	case "object":
		return s.object(v, indent)
	case "string":
		var of []string
		list, _ := field(v, "enum").AsList()
		for _, x := range list {
			if text, ok := x.AsString(); ok {
				of = append(of, `"`+text+`"`)
			}
		}
		if len(of) > 0 {
			return strings.Join(of, " | ")
		}
		return "string"
	case "number", "integer":
		return "number"
	case "boolean":
		return "boolean"
	case "array":
		if items := field(v, "items"); !items.IsMissing() {
			return s.typeOf(items, indent) + "[]"
		}
		return "Array<any>"
	}
	return "any"
}

// nullable is the type, with null if the schema allows it and the type does not say so.
func (s *schema) nullable(v jinja.Value, indent string) string {
	typ := s.typeOf(v, indent)
	if field(v, "nullable") == jinja.True && !strings.Contains(typ, "null") {
		typ += " | null"
	}
	return typ
}

// notes are what is said behind a variant: its description, unless that is known, and what it
// is by default. bare: a default text of an enumeration has no quotes.
func (s *schema) notes(v jinja.Value, known string, bare bool) (notes []string) {
	if text, ok := field(v, "description").AsString(); ok && (known == "" || text != known[1:]) {
		notes = append(notes, text)
	}
	return append(notes, s.standard(v, bare)...)
}

// behind is a comment behind something.
func behind(notes []string) string {
	if len(notes) == 0 {
		return ""
	}
	return " // " + strings.Join(notes, " ")
}

// standard is what is said of a schema's default, if it has one.
func (s *schema) standard(v jinja.Value, bare bool) []string {
	def := field(v, "default")
	if def.IsMissing() {
		return nil
	}
	text, ok := def.AsString()
	of, _ := field(v, "enum").AsList()
	switch {
	case ok && len(of) == 0:
		text = `"` + text + `"`
	case ok && bare:
	default:
		text = s.json(def)
	}
	return []string{"default: " + text}
}

func (s *schema) object(v jinja.Value, indent string) string {
	var b strings.Builder
	line := func(parts ...string) {
		if !s.room(&b) {
			return
		}
		b.WriteString(indent)
		for _, p := range parts {
			b.WriteString(p)
		}
		b.WriteString("\n")
	}
	if text, ok := field(v, "description").AsString(); ok {
		line("// ", text)
	}
	b.WriteString("{\n")
	required := map[jinja.Value]bool{}
	list, _ := field(v, "required").AsList()
	for _, x := range list {
		required[x] = true
	}
	props, _ := field(v, "properties").AsDict()
	for i := range lenOf(props) {
		k, x := props.At(i)
		key, _ := k.AsString()
		mark := "?"
		if required[k] {
			mark = ""
		}
		if text, ok := field(x, "title").AsString(); ok {
			line("// ", text)
			line("//")
		}
		oneOf := field(x, "oneOf")
		text, described := field(x, "description").AsString()
		if described && oneOf.IsMissing() {
			line("// ", text)
		}
		if examples, _ := field(x, "examples").AsList(); len(examples) > 0 {
			line("// Examples:")
			for _, e := range examples {
				if text, ok := e.AsString(); ok {
					line(`// - "`, text, `"`)
				}
			}
		}
		if variants, ok := oneOf.AsList(); ok {
			s.variants(line, x, variants, key+mark, indent)
			continue
		}
		out := key + mark + ": " + s.nullable(x, indent+"    ") + ","
		if oneOf.IsMissing() {
			out += behind(s.standard(x, true))
		}
		line(out)
	}
	b.WriteString(indent + "}")
	return b.String()
}

// variants writes a property that is one of several.
func (s *schema) variants(line func(...string), v jinja.Value, variants []jinja.Value, name, indent string) {
	text, described := field(v, "description").AsString()
	above := described
	if described && len(variants) > 0 {
		first, ok := field(variants[0], "description").AsString()
		above = !ok || first != text
	}
	if above {
		line("// ", text)
	}
	for _, text := range s.standard(v, true) {
		line("// ", text)
	}
	line(name, ":")
	known := ""
	if described {
		known = "=" + text
	}
	for i, x := range variants {
		out := " | " + s.nullable(x, indent+"   ")
		notes := s.standard(x, true)
		if i > 0 || !above {
			notes = s.notes(x, known, true)
		}
		out += behind(notes)
		line(out)
	}
	line(",")
}

func lenOf(d *jinja.Dict) int {
	if d == nil {
		return 0
	}
	return d.Len()
}

// json writes a value as Rust's serde_json does.
func (s *schema) json(v jinja.Value) string {
	if list, ok := v.AsList(); ok {
		parts := make([]string, len(list))
		for i, x := range list {
			parts[i] = s.json(x)
		}
		return "[" + strings.Join(parts, ",") + "]"
	}
	if d, ok := v.AsDict(); ok {
		parts := make([]string, d.Len())
		for i := range parts {
			k, x := d.At(i)
			parts[i] = s.json(k) + ":" + s.json(x)
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
	b, err := jinja.AppendJSON(nil, v)
	if err != nil {
		s.err = err
		return ""
	}
	text := string(b)
	if c := text[0]; c != '-' && (c < '0' || c > '9') {
		return text
	}
	return s.number(text)
}

// number writes a number: whole ones as they are while 64 bits hold them.
func (s *schema) number(text string) string {
	if _, err := strconv.ParseInt(text, 10, 64); err == nil {
		return text
	}
	if _, err := strconv.ParseUint(text, 10, 64); err == nil {
		return text
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(f, 0) {
		s.err = bad("a number that is too large")
		return ""
	}
	digits, exp, _ := strings.Cut(strconv.FormatFloat(math.Abs(f), 'e', -1, 64), "e")
	digits = strings.Replace(digits, ".", "", 1)
	point, _ := strconv.Atoi(exp) // where the point stands behind the first digit
	if written := strings.TrimLeft(strings.Replace(strings.TrimPrefix(text, "-"), ".", "", 1), "0"); len(digits) > 15 || point > 22 || point < -22 || len(written) > 18 && !strings.ContainsAny(written, "e") {
		s.err = unsupported("a default of many digits among a tool's parameters")
		return ""
	}
	sign := ""
	if math.Signbit(f) {
		sign = "-"
	}
	n, e := point+1, fmt.Sprintf("e%+d", point)
	switch {
	case f == 0:
		return sign + "0.0"
	case n >= len(digits) && n <= 16:
		return sign + digits + strings.Repeat("0", n-len(digits)) + ".0"
	case n > 0 && n <= 16:
		return sign + digits[:n] + "." + digits[n:]
	case n > -5 && n <= 0:
		return sign + "0." + strings.Repeat("0", -n) + digits
	case len(digits) == 1:
		return sign + digits + e
	}
	return sign + digits[:1] + "." + digits[1:] + e
}
