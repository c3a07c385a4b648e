package conf

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Option refines a setting's declaration.
type Option func(*Setting)

// ShowDefault makes --help show the text in place of the default, for a default
// that depends on the machine.
func ShowDefault(text string) Option { return func(x *Setting) { x.shownDefault = text } }

// OneOf restricts a string setting to the given values.
func OneOf(allowed ...string) Option {
	return func(x *Setting) {
		x.Help += " One of: " + strings.Join(allowed, ", ") + "."
		x.check = append(x.check, func(v any) error {
			if text, ok := v.(string); ok && slices.Contains(allowed, text) {
				return nil
			}
			return fmt.Errorf("%q is not one of %s", v, strings.Join(allowed, ", "))
		})
	}
}

// Between restricts a setting to lo … hi, both included. T is the type of the
// variable that the setting fills.
func Between[T cmp.Ordered](lo, hi T) Option {
	return func(x *Setting) {
		x.Least, x.Most = limit(x.Kind, lo), limit(x.Kind, hi)
		x.check = append(x.check, func(v any) error {
			n, ok := v.(T)
			if !ok {
				return fmt.Errorf("limits of type %T do not fit a value of type %T", lo, v)
			}
			if n < lo || n > hi {
				return fmt.Errorf("%v is not between %v and %v", v, lo, hi)
			}
			return nil
		})
	}
}

// limit writes a limit as a value of the kind is written.
func limit(kind string, v any) string {
	if n, ok := v.(int64); ok && kind == "bytes" {
		return FormatBytes(n)
	}
	if d, ok := v.(time.Duration); ok {
		return shortDuration(d)
	}
	return fmt.Sprint(v)
}

// shortDuration writes 1h for what Duration.String writes as 1h0m0s.
func shortDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Check restricts a string setting to what f accepts.
func Check(f func(string) error) Option {
	return func(x *Setting) {
		x.check = append(x.check, func(v any) error {
			text, ok := v.(string)
			if !ok {
				return fmt.Errorf("a check of strings does not fit a value of type %T", v)
			}
			return f(text)
		})
	}
}

// String declares a setting that is any text.
func (s *Set) String(p *string, name, def, help string, opts ...Option) {
	same := func(text string) string { return text }
	add(s, p, name, "string", def, help, opts,
		func(text string) (string, error) { return text, nil }, same)
}

// Bool declares a setting that is true or false. The flag alone means true.
func (s *Set) Bool(p *bool, name string, def bool, help string, opts ...Option) {
	add(s, p, name, "bool", def, help, opts, parseBool, strconv.FormatBool)
}

// Int declares a setting that is a whole number.
func (s *Set) Int(p *int, name string, def int, help string, opts ...Option) {
	add(s, p, name, "int", def, help, opts, parseInt, strconv.Itoa)
}

// Float declares a setting that is a finite number.
func (s *Set) Float(p *float64, name string, def float64, help string, opts ...Option) {
	add(s, p, name, "float", def, help, opts, parseFloat, func(v float64) string {
		return strconv.FormatFloat(v, 'g', -1, 64)
	})
}

// Duration declares a setting that is a span of time, such as 1m30s.
func (s *Set) Duration(p *time.Duration, name string, def time.Duration, help string, opts ...Option) {
	add(s, p, name, "duration", def, help, opts, parseDuration, time.Duration.String)
}

// Bytes declares a setting that is a size, such as 8GiB; a bare number is
// bytes.
func (s *Set) Bytes(p *int64, name string, def int64, help string, opts ...Option) {
	add(s, p, name, "bytes", def, help, opts, ParseBytes, FormatBytes)
}

// List declares a setting that is several texts, separated by commas, or a
// sequence in YAML. Spaces around an item and empty items are dropped.
func (s *Set) List(p *[]string, name string, def []string, help string, opts ...Option) {
	add(s, p, name, "list", def, help, opts, parseList, func(v []string) string {
		return strings.Join(v, ",")
	})
}

func parseBool(text string) (bool, error) {
	switch text {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, fmt.Errorf("%q is not true or false", text)
}

func parseInt(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%q is out of range", text)
	}
	if err != nil {
		return 0, fmt.Errorf("%q is not a whole number", text)
	}
	return n, nil
}

func parseFloat(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, fmt.Errorf("%q is not a finite number", text)
	}
	return v, nil
}

func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration such as 500ms, 10s or 1h30m", text)
	}
	if d < 0 {
		return 0, fmt.Errorf("%q is negative", text)
	}
	return d, nil
}

func parseList(text string) ([]string, error) {
	var items []string
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items, nil
}

// units are the suffixes of sizes, the larger first within a family so that
// FormatBytes finds the largest that divides.
var units = []struct {
	suffix string
	size   int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1},
}

// ParseBytes reads a size: a number, whole or decimal, and a unit of kB, MB,
// GB, TB (powers of 1000), KiB, MiB, GiB, TiB (powers of 1024) or B; no unit
// means bytes. The size must be a whole number of bytes.
func ParseBytes(text string) (int64, error) {
	number, size := text, int64(1)
	for _, u := range units {
		if n, ok := strings.CutSuffix(text, u.suffix); ok {
			number, size = strings.TrimRight(n, " "), u.size
			break
		}
	}
	if number == "" || strings.Trim(number, "0123456789.") != "" {
		return 0, fmt.Errorf("%q is not a size such as 512MiB, 8GiB or 1000000", text)
	}
	v, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, fmt.Errorf("%q is not a size such as 512MiB, 8GiB or 1000000", text)
	}
	v.Mul(v, new(big.Rat).SetInt64(size))
	switch {
	case !v.IsInt():
		return 0, fmt.Errorf("%q is not a whole number of bytes", text)
	case !v.Num().IsInt64():
		return 0, fmt.Errorf("%q is out of range", text)
	}
	return v.Num().Int64(), nil
}

// FormatBytes writes a size in the largest power-of-1024 unit that divides it.
func FormatBytes(n int64) string {
	for _, u := range units[:4] {
		if n >= u.size && n%u.size == 0 {
			return strconv.FormatInt(n/u.size, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}
