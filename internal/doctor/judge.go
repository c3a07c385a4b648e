package doctor

import (
	"cmp"
	"slices"
	"strings"
	"unicode"

	"github.com/kvatlas/kvatlas/registry"
)

// finding is one before it is said whose it is.
type finding struct {
	level     Level
	found, do string
}

// check looks at one thing; of several findings the worst counts, and the first among
// equals. None: there is nothing to say.
type check struct {
	name string
	look func(f *Facts) []finding
}

// checks are all of them, in the order in which people would look.
func checks() []check {
	return []check{
		{"registered", registered}, {"engine", engine}, {"model", model}, {"tokens", tokens}, {"lora", loras},
		{"hash_scheme", hashScheme}, {"block_size", blockSize}, {"groups", groups}, {"dp_ranks", dpRanks}, {"events", events}, {"lateness", lateness},
		{"matches", matches}, {"left_out", leftOut}, {"engine_hashes", engineHashes}, {"replay", replay}, {"tiers", tiers},
		{"cached", cached}, {"clock", clock}, {"pools", pools}, {"peer", peer}, {"connector", connector}, {"hand_over", handOver},
	}
}

// Names returns the names of the checks in their order.
func Names() []string {
	var list []string
	for _, c := range checks() {
		list = append(list, c.name)
	}
	return list
}

// Judge returns one finding for each check that has something to say of each worker,
// sorted by model, worker and check.
func Judge(fleet []Facts) []Finding {
	var all []Finding
	for i := range fleet {
		all = append(all, judge(&fleet[i])...)
	}
	slices.SortStableFunc(all, func(a, b Finding) int { return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Worker, b.Worker)) })
	return all
}

func judge(f *Facts) (all []Finding) {
	for _, c := range checks() {
		said := c.look(f)
		if len(said) == 0 {
			continue
		}
		worst := slices.MaxFunc(said, func(a, b finding) int { return cmp.Compare(a.level.weight(), b.level.weight()) })
		all = append(all, Finding{
			Worker: f.Worker.ID, Name: f.Worker.Name, Model: f.Worker.Model, Check: c.name, Level: worst.level, Found: printable(worst.found), Do: worst.do,
		})
	}
	return all
}

// maxFound bounds what a finding says, in bytes.
const maxFound = 1 << 10

// printable is a text of which nothing is a command to a terminal, and that fits into a line:
// engines have written parts of it.
func printable(text string) string {
	if len(text) > maxFound {
		text = strings.ToValidUTF8(text[:maxFound], "") + "…"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}

func (l Level) weight() int { return slices.Index([]Level{OK, Unknown, Warning, Fault}, l) }

// Registered returns what is wrong with a worker by its registration alone, where that is
// meant to be indexed: without an address of its engine it may be. Pool is that of its model.
func Registered(e *registry.Entry, p *Pool) []Finding {
	f := Facts{Worker: e.Worker, Mismatch: e.Mismatch, Conflict: e.Conflict, Pool: p}
	return slices.DeleteFunc(judge(&f), func(x Finding) bool { return x.Level != Warning && x.Level != Fault || x.Check == "engine" })
}

// Worst returns the worst level of the findings.
func Worst(all []Finding) Level {
	worst := OK
	for _, f := range all {
		if f.Level.weight() > worst.weight() {
			worst = f.Level
		}
	}
	return worst
}
