package coretest

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// RunScripts runs every script (see [Scripts]) that matches the pattern, each on a
// new index beside the oracle. Lists of numbers have the form 1,2,5..9,max; tiers
// are 0 to 3.
//
//	store h=0 [tier=1] [copies] [parent=7] E=1,2 [L=10,11]   the outcome; without L hash-only
//	remove h=0 [tier=1] [copies] E=1,2                       the outcome
//	clear h=0 [tier=1|all]                                   the outcome
//	forget h=0 E=1,2                                         the outcome, known hashes as Replaced
//	find L=10,11                                             holders: depth at each level
//	held h=0                                                 blocks on each tier
//	knows h=0 E=1,2                                          those that are known
//	alone                                                    no oracle from here on: for what is too large for it
//
// h may be a list; outcomes are added up. With the argument each, every block
// is an event of its own, with the same parent.
func RunScripts(t *testing.T, pattern string, newIndex func() core.Index) {
	Scripts(t, pattern, func() (run func(string) ([]string, error), end func() error) {
		s := &script{Checker: NewChecker(newIndex(), 1)}
		return s.run, func() error {
			if s.alone {
				return nil
			}
			return s.State(64)
		}
	})
}

type script struct {
	*Checker
	alone bool
}

// run carries one command out and returns what it prints.
func (s *script) run(line string) ([]string, error) {
	command, rest, _ := strings.Cut(line, " ")
	var op Op
	var holders []uint64
	each := false
	ev := &op.Event
	for _, arg := range strings.Fields(rest) {
		key, value, _ := strings.Cut(arg, "=")
		switch {
		case key == "copies":
			op.Count = true
			continue
		case key == "each":
			each = true
			continue
		case key == "tier" && value == "all":
			ev.AllTiers = true
			continue
		}
		list, err := parseList(value)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", arg, err)
		}
		switch key {
		case "h":
			holders = list
		case "tier":
			ev.Tier = event.Tier(list[0])
		case "parent":
			ev.HasParent, ev.Parent = true, list[0]
		case "E":
			ev.Engine = list
		case "L":
			ev.Local = list
		default:
			return nil, fmt.Errorf("unknown argument %q", arg)
		}
	}
	switch command {
	case "store":
		ev.Kind = event.Stored
	case "remove":
		ev.Kind = event.Removed
	case "clear":
		ev.Kind = event.Cleared
	case "forget":
	case "alone":
		s.alone = true
		return nil, nil
	case "find":
		return s.find(ev.Local)
	case "held":
		return s.held(holders)
	case "knows":
		return s.knows(holders, ev.Engine)
	default:
		return nil, fmt.Errorf("unknown command %q", command)
	}
	ops := []Op{op}
	if each {
		ops = make([]Op, len(ev.Engine))
		for i := range ops {
			ops[i] = op
			ops[i].Event.Engine = ev.Engine[i : i+1]
			if len(ev.Local) > 0 {
				ops[i].Event.Local = ev.Local[i : i+1]
			}
		}
	}
	var sum core.Outcome
	for _, h := range holders {
		for i := range ops {
			op := &ops[i]
			op.Holder = core.Holder(h)
			have := op.Apply(s.Index)
			sum.Add(have)
			if s.alone {
				continue
			}
			s.note(op)
			if want := op.Apply(s.Oracle); have != want {
				return nil, fmt.Errorf("outcome for holder %d:\n  have %+v\n  want %+v", h, have, want)
			}
		}
	}
	return []string{printOutcome(sum)}, nil
}

func (s *script) find(local []uint64) ([]string, error) {
	s.Index.Find(local, &s.m)
	a, err := ReadAnswer(&s.m)
	if err != nil {
		return nil, err
	}
	if s.alone {
		return printAnswer(a), nil
	}
	if want := OracleAnswer(s.Oracle, local); !maps.Equal(a, want) {
		return nil, fmt.Errorf("the oracle finds\n%v, the index\n%v", want, a)
	}
	return printAnswer(a), nil
}

// printAnswer prints a line for each stretch of holders with the same depths.
func printAnswer(a Answer) []string {
	var lines []string
	holders := slices.Sorted(maps.Keys(a))
	for i := 0; i < len(holders); {
		j := i + 1
		for j < len(holders) && holders[j] == holders[j-1]+1 && a[holders[j]] == a[holders[i]] {
			j++
		}
		who := fmt.Sprint(holders[i])
		if j > i+1 {
			who += ".." + fmt.Sprint(holders[j-1])
		}
		d := a[holders[i]]
		lines = append(lines, fmt.Sprintf("%s: %d %d %d %d", who, d[0], d[1], d[2], d[3]))
		i = j
	}
	if len(lines) == 0 {
		return []string{"nothing"}
	}
	return lines
}

func (s *script) held(holders []uint64) ([]string, error) {
	var lines []string
	for _, h := range holders {
		var n [event.NumTiers]int
		for t := range event.Tier(event.NumTiers) {
			n[t] = s.Index.Held(core.Holder(h), t)
		}
		lines = append(lines, fmt.Sprintf("%d: %d %d %d %d", h, n[0], n[1], n[2], n[3]))
	}
	return lines, nil
}

func (s *script) knows(holders, engine []uint64) ([]string, error) {
	var lines []string
	for _, h := range holders {
		var known []string
		for _, e := range engine {
			if s.Index.Knows(core.Holder(h), e) {
				known = append(known, strings.Replace(goHash(e), "math.MaxUint64", "max", 1))
			}
		}
		lines = append(lines, fmt.Sprintf("%d: %s", h, cmp.Or(strings.Join(known, ","), "nothing")))
	}
	return lines, nil
}

// printOutcome prints the fields that are not zero.
func printOutcome(out core.Outcome) string {
	var fields []string
	v := reflect.ValueOf(out)
	for i := range v.NumField() {
		if n := v.Field(i).Int(); n != 0 {
			fields = append(fields, fmt.Sprintf("%s %d", v.Type().Field(i).Name, n))
		}
	}
	return cmp.Or(strings.Join(fields, ", "), "nothing")
}

// parseList reads 1,2,5..9,max.
func parseList(s string) ([]uint64, error) {
	number := func(s string) (uint64, error) {
		if s == "max" {
			return math.MaxUint64, nil
		}
		return strconv.ParseUint(s, 10, 64)
	}
	var list []uint64
	for _, part := range strings.Split(s, ",") {
		first, last, isRange := strings.Cut(part, "..")
		from, err := number(first)
		if err != nil {
			return nil, err
		}
		to := from
		if isRange {
			if to, err = number(last); err != nil {
				return nil, err
			}
		}
		for n := from; n <= to; n++ {
			list = append(list, n)
			if n == math.MaxUint64 {
				break
			}
		}
	}
	return list, nil
}
