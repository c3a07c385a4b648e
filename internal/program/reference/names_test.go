package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/program/conf"
)

// One name is one setting in all programs, and one setting has one name: else a
// variable that is meant for one program steers another.
func TestNamesAndSettingsAreOne(t *testing.T) {
	lists, _ := listed(t)
	for _, fault := range ambiguous(lists) {
		t.Error(fault)
	}
}

// ambiguous returns what has one name and two meanings, or one meaning and two
// names, over the programs.
func ambiguous(lists []conf.List) (faults []string) {
	type first struct {
		program string
		conf.Listed
	}
	byName, byHelp := map[string]first{}, map[string]first{}
	for _, l := range lists {
		for _, s := range l.Settings {
			if f, ok := byName[s.Name]; !ok {
				byName[s.Name] = first{l.Program, s}
			} else if f.Kind != s.Kind || f.Secret != s.Secret || !alike(f.Help, s.Help) {
				faults = append(faults, fmt.Sprintf("--%s is one thing in %s and another in %s:\n\t%s\n\t%s", s.Name, f.program, l.Program, f.Help, s.Help))
			}
			if f, ok := byHelp[s.Help]; !ok {
				byHelp[s.Help] = first{l.Program, s}
			} else if f.Name != s.Name {
				faults = append(faults, fmt.Sprintf("--%s of %s and --%s of %s are one setting: %s", f.Name, f.program, s.Name, l.Program, s.Help))
			}
		}
	}
	return faults
}

// alike reports whether two help texts speak of one setting: their first sentences
// are the same, what follows may be the program's own.
func alike(a, b string) bool {
	first := func(s string) string { before, _, _ := strings.Cut(s, ". "); return strings.TrimSuffix(before, ".") }
	return first(a) == first(b)
}

func TestAmbiguousNamesAreFound(t *testing.T) {
	lease := func(name, kind, help string) conf.List {
		return conf.List{Program: "p" + name + kind, Settings: []conf.Listed{{Name: name, Kind: kind, Help: help}}}
	}
	a := lease("lease", "duration", "How long a worker counts as there. One is sent each third.")
	for want, b := range map[string]conf.List{
		"":                      lease("lease", "duration", "How long a worker counts as there."),
		"--lease is one thing":  lease("lease", "duration", "When a booking ends."),
		"one thing in please":   lease("lease", "int", a.Settings[0].Help),
		"are one setting: How ": lease("worker-lease", "duration", a.Settings[0].Help),
	} {
		faults := ambiguous([]conf.List{a, b})
		if (want == "") != (len(faults) == 0) || want != "" && !slices.ContainsFunc(faults, func(f string) bool { return strings.Contains(f, strings.TrimPrefix(want, "one thing in p")) }) {
			t.Errorf("%q: %q", want, faults)
		}
	}
}
