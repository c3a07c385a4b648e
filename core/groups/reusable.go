package groups

// Held tells whether a group holds what ends at a boundary of a prompt: the block that ends
// with the token before it, or the part of one. Boundaries are multiples of the unit, and
// lie within the prompt.
type Held func(group, end int) bool

// Reusable returns how many leading tokens of a prompt of so many tokens can be reused,
// given what the groups hold of it. It is less than all of them, as the last token must be
// computed in any case.
func (l *Layout) Reusable(tokens int, held Held) int {
	if tokens < 2 {
		return 0
	}
	p := prompt{Layout: l, known: tokens - tokens%l.unit, held: held}
	if len(l.classes) == 1 && len(l.classes[0].members) == 1 {
		return p.longest(0, tokens-1, l.classes[0].Eagle)
	}
	return p.agree(tokens - 1)
}

// prompt is one lookup.
type prompt struct {
	*Layout
	known int // tokens up to the last boundary
	held  Held
	runs  [MaxGroups]run // of classes that need several blocks: what a candidate before showed
}

// run is a stretch of which a class has all blocks. Candidates come down in small steps where
// classes disagree; none of them looks again at what one before it has seen.
type run struct{ low, high int }

// agree returns the longest prefix of at most most tokens that all classes accept. Each
// accepts the candidate or shortens it, until none does: it never grows.
//
// A class of EAGLE looks one block beyond the candidate and gives that up. It does so once
// for a candidate: what is shortened by another class of EAGLE is not checked in that way
// again, only what is shortened by one without.
func (p *prompt) agree(most int) int {
	var proven uint64      // classes of EAGLE that the candidate was checked with
	full := map[int]int{}  // class of full attention: its longest prefix
	for round := most; ; { // each round begins with the candidate of the one before
		now := round
		for i := range p.classes {
			c := &p.classes[i]
			if n, ok := full[i]; ok { // all that is shorter is there as well
				now = min(now, n)
				continue
			}
			drop := c.Eagle && proven&(1<<i) == 0
			limit := now
			if drop && (c.Kind == Full || c.Kind == Window) { // the others give nothing up
				limit = min(now+p.margin(c), p.known)
			}
			n := p.longest(i, limit, drop)
			switch {
			case drop:
				proven |= 1 << i
			case n < now:
				proven = 0
			}
			if now = n; c.Kind == Full {
				full[i] = n
			}
		}
		if now >= round {
			return now
		}
		round = now
	}
}

// margin is how many tokens beyond a candidate a class of EAGLE looks.
func (p *prompt) margin(c *class) int {
	if p.fine && (c.Kind == Full || c.Kind == State) {
		return p.unit
	}
	return c.Block
}

// has tells whether all groups of the class hold what ends there.
func (p *prompt) has(c *class, end int) bool {
	if end > p.known {
		return false
	}
	for _, g := range c.members {
		if !p.held(g, end) {
			return false
		}
	}
	return true
}

// longest returns the longest prefix of at most limit tokens that the class accepts,
// without the last block if that is to be dropped.
func (p *prompt) longest(i, limit int, drop bool) int {
	c := &p.classes[i]
	switch c.Kind {
	case Window:
		return p.window(c, &p.runs[i], limit, drop)
	case Chunked:
		return p.chunked(c, &p.runs[i], limit)
	case State:
		return p.state(c, limit)
	default:
		return p.full(c, limit, drop)
	}
}

// full: all blocks, and of the one after them a tail that is cached for itself.
func (p *prompt) full(c *class, limit int, drop bool) int {
	hit := 0
	for hit+c.Block <= limit && p.has(c, hit+c.Block) {
		hit += c.Block
	}
	if p.fine {
		last := min(hit+c.Block-p.unit, limit-limit%p.unit)
		for end := last; end > hit; end -= p.unit {
			if p.has(c, end) {
				hit = end
				break
			}
		}
	}
	if drop && hit > 0 {
		hit -= min(p.align, c.Block)
	}
	return hit - hit%p.align
}

// window: the last blocks that the window reaches, or all.
func (p *prompt) window(c *class, seen *run, limit int, drop bool) int {
	beyond := 0 // tokens that are dropped
	need := (c.Span - 1 + c.Block - 1) / c.Block
	if drop {
		beyond = c.Block
		need++
	}
	blocks := 0 // from the candidate's last one back
	at := limit - limit%c.Block
	edge := at
	for at > 0 {
		before := at - c.Block
		switch {
		case seen.low < at && at <= seen.high:
			before = seen.low
		case !p.has(c, at):
			blocks, at = 0, before
			continue
		}
		if blocks == 0 {
			if (at-beyond)%p.align != 0 {
				at -= c.Block
				continue
			}
			edge = at
		}
		blocks += (at - before) / c.Block
		if at = before; blocks >= need {
			*seen = run{at, edge}
			return edge - beyond
		}
	}
	if blocks == 0 {
		return 0
	}
	*seen = run{0, edge}
	edge -= edge % p.align // all of the prompt before it is there
	if edge = max(0, edge-beyond); edge > 0 {
		edge -= edge % p.align
	}
	return edge
}

// chunked: all blocks from the start of the chunk in which the next token is.
func (p *prompt) chunked(c *class, seen *run, limit int) int {
	start := limit / c.Span * c.Span
	start -= start % c.Block
	hit := start
	if seen.low == start {
		hit = max(hit, min(seen.high, limit-limit%c.Block))
	}
	for hit+c.Block <= limit && p.has(c, hit+c.Block) {
		hit += c.Block
	}
	*seen = run{start, hit}
	return hit
}

// state: the last checkpoint.
func (p *prompt) state(c *class, limit int) int {
	step := c.Block
	if p.fine {
		step = p.unit
	}
	for end := limit - limit%step; end > 0; end -= step {
		if end%p.align == 0 && p.has(c, end) {
			return end
		}
	}
	return 0
}
