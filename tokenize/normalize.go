package tokenize

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// normalizer appends src as the model is to see it.
type normalizer interface {
	apply(w *work, dst, src []byte) []byte
}

type prepend []byte

func (p prepend) apply(_ *work, dst, src []byte) []byte {
	if len(src) == 0 {
		return dst
	}
	return append(append(dst, p...), src...)
}

type replace struct{ old, new []byte }

func (r replace) apply(_ *work, dst, src []byte) []byte {
	for {
		i := bytes.Index(src, r.old)
		if i < 0 {
			return append(dst, src...)
		}
		dst = append(append(dst, src[:i]...), r.new...)
		src = src[i+len(r.old):]
	}
}

type strip struct{ left, right bool }

func (s strip) apply(_ *work, dst, src []byte) []byte {
	t := tables()
	for s.left && len(src) > 0 {
		c, n := t.classAt(src, 0)
		if c&classSpace == 0 {
			break
		}
		src = src[n:]
	}
	for s.right && len(src) > 0 {
		i := lastRune(src, len(src))
		if c, _ := t.classAt(src, i); c&classSpace == 0 {
			break
		}
		src = src[:i]
	}
	return append(dst, src...)
}

// lastRune is where the character before end begins.
func lastRune(b []byte, end int) int {
	i := end - 1
	for i > 0 && !utf8.RuneStart(b[i]) {
		i--
	}
	return i
}

type lowercase struct{}

func (lowercase) apply(_ *work, dst, src []byte) []byte {
	t := tables()
	for i := 0; i < len(src); {
		r, n := runeAt(src, i)
		switch {
		case r >= 'A' && r <= 'Z':
			dst = append(dst, src[i]|0x20)
		case r < utf8.RuneSelf:
			dst = append(dst, src[i])
		default:
			if to, ok := t.lower[r]; ok {
				for _, r := range to {
					dst = utf8.AppendRune(dst, r)
				}
			} else {
				dst = append(dst, src[i:i+n]...)
			}
		}
		i += n
	}
	return dst
}

// component is any of the objects that a tokenizer.json puts together.
type component struct {
	Type           string          `json:"type"`
	Normalizers    []component     `json:"normalizers"`
	Pretokenizers  []component     `json:"pretokenizers"`
	Processors     []component     `json:"processors"`
	Decoders       []component     `json:"decoders"`
	Pattern        *pattern        `json:"pattern"`
	Behavior       string          `json:"behavior"`
	Invert         bool            `json:"invert"`
	Prepend        string          `json:"prepend"`
	Content        string          `json:"content"`
	StripLeft      bool            `json:"strip_left"`
	StripRight     bool            `json:"strip_right"`
	AddPrefixSpace *bool           `json:"add_prefix_space"`
	UseRegex       *bool           `json:"use_regex"`
	Individual     bool            `json:"individual_digits"`
	Replacement    string          `json:"replacement"`
	PrependScheme  string          `json:"prepend_scheme"`
	Split          *bool           `json:"split"`
	Delimiter      string          `json:"delimiter"`
	CleanText      *bool           `json:"clean_text"`
	ChineseChars   *bool           `json:"handle_chinese_chars"`
	StripAccents   *bool           `json:"strip_accents"`
	Lowercase      *bool           `json:"lowercase"`
	Single         []templatePart  `json:"single"`
	SpecialTokens  json.RawMessage `json:"special_tokens"`
	Sep            json.RawMessage `json:"sep"`
	Cls            json.RawMessage `json:"cls"`
	Prefix         *string         `json:"prefix"`
	Cleanup        *bool           `json:"cleanup"`
	Start          int             `json:"start"`
	Stop           int             `json:"stop"`
	TrimOffsets    *bool           `json:"trim_offsets"`
	Charsmap       string          `json:"precompiled_charsmap"`
}

type pattern struct {
	String *string `json:"String"`
	Regex  *string `json:"Regex"`
}

// refused names what cannot be done exactly.
func refused(format string, a ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrUnsupported}, a...)...)
}

// parseComponent reads one component; nil where the file says null.
func parseComponent(b []byte) (*component, error) {
	if len(b) == 0 || string(b) == "null" {
		return nil, nil
	}
	c := &component{}
	if err := json.Unmarshal(b, c); err != nil {
		return nil, err
	}
	return c, nil
}

// normalizers puts a normalizer's steps into one list.
func normalizers(c *component, to []normalizer) ([]normalizer, error) {
	if c == nil {
		return to, nil
	}
	switch c.Type {
	case "Sequence":
		for i := range c.Normalizers {
			var err error
			if to, err = normalizers(&c.Normalizers[i], to); err != nil {
				return nil, err
			}
		}
		return to, nil
	case "NFC":
		return append(to, form{compose: true}), nil
	case "NFKC":
		return append(to, form{compose: true, compat: true}), nil
	case "NFD":
		return append(to, form{}), nil
	case "NFKD":
		return append(to, form{compat: true}), nil
	case "Prepend":
		if len(c.Prepend) > maxText {
			return nil, refused("normalizer Prepend of %d bytes", len(c.Prepend))
		}
		return append(to, prepend(c.Prepend)), nil
	case "Strip":
		return append(to, strip{left: c.StripLeft, right: c.StripRight}), nil
	case "Lowercase":
		return append(to, lowercase{}), nil
	case "Precompiled":
		p, err := loadPrecompiled(c.Charsmap)
		if err != nil {
			return nil, err
		}
		return append(to, p), nil
	case "StripAccents":
		return append(to, stripAccents{}), nil
	case "BertNormalizer":
		is := func(b *bool, otherwise bool) bool { return b == nil && otherwise || b != nil && *b }
		n := bert{clean: is(c.CleanText, true), chinese: is(c.ChineseChars, true), lower: is(c.Lowercase, true)}
		n.accents = is(c.StripAccents, n.lower)
		return append(to, n), nil
	case "Replace":
		if c.Pattern == nil {
			return nil, refused("normalizer Replace without a pattern")
		}
		if len(c.Content) > maxText {
			return nil, refused("normalizer Replace by %d bytes", len(c.Content))
		}
		if c.Pattern.String == nil && c.Pattern.Regex == nil {
			return nil, refused("normalizer Replace of an unknown pattern")
		}
		if c.Pattern.String != nil {
			if *c.Pattern.String == "" {
				return nil, refused("normalizer Replace of an empty text")
			}
			return append(to, replace{[]byte(*c.Pattern.String), []byte(c.Content)}), nil
		}
		re, err := compile(*c.Pattern.Regex)
		if err != nil {
			return nil, refused("normalizer Replace with %q: %w", *c.Pattern.Regex, err)
		}
		return append(to, replaceRegexp{re, []byte(c.Content)}), nil
	}
	return nil, refused("normalizer %q", c.Type)
}

type replaceRegexp struct {
	re  *regexp
	new []byte
}

func (r replaceRegexp) apply(w *work, dst, src []byte) []byte {
	at := 0
	for at < len(src) {
		s, e := r.re.next(w, src, at)
		dst = append(dst, src[at:s]...)
		if s == e {
			break
		}
		dst = append(dst, r.new...)
		at = e
	}
	return dst
}
