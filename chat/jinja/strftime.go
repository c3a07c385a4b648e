package jinja

import (
	"fmt"
	"strings"
	"time"
)

// strftimeNow is strftime_now(format), in the C locale.
func strftimeNow(s *state, a *args) (Value, error) {
	given, err := a.bind("strftime_now", "format")
	if err != nil {
		return Value{}, err
	}
	if err := wantStr("strftime_now", given[0]); err != nil {
		return Value{}, err
	}
	text, err := strftime(s.now, given[0].s)
	if err != nil {
		return Value{}, err
	}
	return Str(text), s.alloc(len(text))
}

func strftime(t time.Time, format string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		pad := "0"
		if format[i] == '-' && i+1 < len(format) {
			i++
			pad = ""
		}
		two := func(n int) { fmt.Fprintf(&b, "%"+pad+"2d", n) }
		if pad == "" {
			two = func(n int) { fmt.Fprintf(&b, "%d", n) }
		}
		hour := (t.Hour()+11)%12 + 1
		switch format[i] {
		case '%':
			b.WriteByte('%')
		case 'Y':
			fmt.Fprintf(&b, "%d", t.Year())
		case 'y':
			two(t.Year() % 100)
		case 'm':
			two(int(t.Month()))
		case 'd':
			two(t.Day())
		case 'e':
			fmt.Fprintf(&b, "%2d", t.Day())
		case 'H':
			two(t.Hour())
		case 'I':
			two(hour)
		case 'M':
			two(t.Minute())
		case 'S':
			two(t.Second())
		case 'f':
			fmt.Fprintf(&b, "%06d", t.Nanosecond()/1000)
		case 'j':
			fmt.Fprintf(&b, "%03d", t.YearDay())
		case 'A':
			b.WriteString(t.Weekday().String())
		case 'a':
			b.WriteString(t.Weekday().String()[:3])
		case 'B':
			b.WriteString(t.Month().String())
		case 'b', 'h':
			b.WriteString(t.Month().String()[:3])
		case 'p':
			b.WriteString(t.Format("PM"))
		case 'F':
			b.WriteString(t.Format("2006-01-02"))
		case 'T':
			b.WriteString(t.Format("15:04:05"))
		case 'R':
			b.WriteString(t.Format("15:04"))
		case 'D', 'x':
			b.WriteString(t.Format("01/02/06"))
		case 'X':
			b.WriteString(t.Format("15:04:05"))
		case 'c':
			b.WriteString(t.Format("Mon Jan _2 15:04:05 2006"))
		case 'u':
			fmt.Fprintf(&b, "%d", (int(t.Weekday())+6)%7+1)
		case 'w':
			fmt.Fprintf(&b, "%d", t.Weekday())
		case 'n':
			b.WriteByte('\n')
		case 't':
			b.WriteByte('\t')
		case 'Z', 'z': // the time has no zone there
		default:
			return "", &UnsupportedError{"strftime_now with %" + format[i:i+1]}
		}
	}
	return b.String(), nil
}
