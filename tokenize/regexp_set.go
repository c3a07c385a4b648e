package tokenize

// one reads one character or set.
func (p *parser) one() (set, error) {
	c := p.in[p.at]
	switch c {
	case '[':
		p.at++
		return p.class(0)
	case '\\':
		s, _, err := p.escape()
		return s, err
	case '.':
		p.at++
		return set{negated: true, ranges: []rune{'\n', '\n'}}, nil
	case '^', '$', '*', '+', '?', '{', '}', ']':
		return set{}, p.odd("an unknown " + string(c))
	}
	p.at++
	return p.char(c)
}

// char is the set of one character, and of its other case where case does not count.
func (p *parser) char(c rune) (set, error) {
	s := set{ranges: []rune{c, c}}
	if !p.fold {
		return s, nil
	}
	lower := c | 0x20
	switch {
	case c > 0x7f:
		return set{}, p.odd("case that does not count beyond ASCII")
	case lower >= 'a' && lower <= 'z':
		s.ranges = []rune{lower, lower, lower - 0x20, lower - 0x20}
		if lower == 's' {
			s.ranges = append(s.ranges, 'ſ', 'ſ')
		}
		if lower == 'k' {
			s.ranges = append(s.ranges, 'K', 'K')
		}
	}
	return s, nil
}

// escape reads what a backslash begins; single is its character if it stands for one.
func (p *parser) escape() (s set, single rune, err error) {
	p.at++
	if !p.more() {
		return set{}, -1, p.odd("a backslash at the end")
	}
	c := p.in[p.at]
	p.at++
	switch c {
	case 's', 'S':
		return set{space: true, negated: c == 'S'}, -1, nil
	case 'd', 'D':
		return set{cats: maskOf("Nd"), negated: c == 'D'}, -1, nil
	case 'p', 'P':
		s, err := p.property()
		if c == 'P' {
			s.negated = !s.negated
		}
		return s, -1, err
	case 'n':
		c = '\n'
	case 'r':
		c = '\r'
	case 't':
		c = '\t'
	case 'f':
		c = '\f'
	case 'v':
		return set{}, -1, p.odd(`\v`)
	default:
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c > 0x7f {
			p.at--
			return set{}, -1, p.odd("an unknown escape")
		}
	}
	return set{ranges: []rune{c, c}}, c, nil
}

func (p *parser) property() (set, error) {
	if !p.take("{") {
		return set{}, p.odd("a property without {")
	}
	from := p.at
	for p.more() && p.in[p.at] != '}' {
		p.at++
	}
	name := string(p.in[from:p.at])
	if !p.take("}") {
		return set{}, p.odd("a property without }")
	}
	if name == "Han" {
		return set{han: true}, nil
	}
	if len(name) > 0 && name[0] != 'C' {
		if m := maskOf(name); m != 0 {
			return set{cats: m}, nil
		}
	}
	return set{}, p.odd("an unknown property " + name)
}

// class reads what stands between brackets.
func (p *parser) class(depth int) (set, error) {
	s := set{}
	if depth > maxGroups {
		return s, p.odd("sets too deep")
	}
	s.negated = p.take("^")
	first := true
	for {
		if !p.more() {
			return s, p.odd("a set without its end")
		}
		switch {
		case p.in[p.at] == ']' && !first:
			p.at++
			return s, nil
		case p.in[p.at] == ']':
			return s, p.odd("an empty set")
		case p.looking("[:"):
			return s, p.odd("a set of POSIX")
		case p.take("&&"):
			and, err := p.class(depth + 1) // up to the same ]
			if err != nil {
				return s, err
			}
			s.and = &and
			return s, nil
		case p.take("["):
			sub, err := p.class(depth + 1)
			if err != nil {
				return s, err
			}
			s.subsets = append(s.subsets, sub)
		default:
			if err := p.member(&s); err != nil {
				return s, err
			}
		}
		first = false
	}
}

// member reads a character, a range or an escape within a set.
func (p *parser) member(s *set) error {
	low := p.in[p.at]
	if low == '\\' {
		sub, c, err := p.escape()
		if err != nil {
			return err
		}
		if low = c; c < 0 {
			s.subsets = append(s.subsets, sub)
			return nil
		}
	} else {
		p.at++
	}
	high := low
	if p.at+1 < len(p.in) && p.in[p.at] == '-' && p.in[p.at+1] != ']' {
		p.at++
		if high = p.in[p.at]; high == '\\' {
			_, c, err := p.escape()
			if err != nil {
				return err
			}
			high = c
		} else {
			if high == '[' {
				return p.odd("a range that ends in a set")
			}
			p.at++
		}
		if high < low {
			return p.odd("a range back to front")
		}
	}
	if p.fold && (low|0x20 >= 'a' && low|0x20 <= 'z' || high|0x20 >= 'a' && high|0x20 <= 'z' || high > 0x7f) {
		return p.odd("case that does not count in a set")
	}
	if s.ranges = append(s.ranges, low, high); len(s.ranges) > maxRanges {
		return p.odd("a set of too many")
	}
	return nil
}
