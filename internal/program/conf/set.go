package conf

import (
	"errors"
	"fmt"
	"strings"
)

// envPrefix starts the name of every environment variable that is a setting.
const envPrefix = "KVATLAS_"

// testPrefix starts the names of variables that steer kvatlas's own tests,
// which programs under test inherit.
const testPrefix = envPrefix + "TEST_"

// Set is the settings of one program.
type Set struct {
	program  string
	summary  string
	group    string
	settings []*Setting // in order of declaration
	byName   map[string]*Setting
	commands []command
	argsHelp string // how --help shows positional arguments; empty: there are none
	args     []string
	path     string // the YAML file
	foreign  []Foreign
	checks   []func() error // of the settings together
	err      error          // the first mistake in a declaration
}

// command is a word that makes the program print something and end.
type command struct {
	words string
	help  string
	run   func() (string, error)
	loads bool // the settings are read and checked first
}

// Setting describes one setting, for --help and for generated references.
type Setting struct {
	Name    string // as in --name
	Group   string // heading under which it is listed
	Kind    string // string, bool, int, duration, bytes, float, list or credential
	Help    string // one paragraph
	Default string
	// Least and Most are the limits of a number, a size or a duration, as its
	// values are written; empty without limits.
	Least, Most string
	Secret      bool // a value may hold credentials

	shownDefault string // in place of Default in --help

	source string             // where the present value is from
	set    func(string) error // parses, checks and stores a value
	text   func() string      // the present value as Run would read it
	check  []func(any) error
}

// Env returns the name of the setting's environment variable, which every
// program that has a setting of the name reads.
func (s *Setting) Env() string { return envPrefix + envName(s.Name) }

// New returns a Set with the setting --config and the commands help, config
// print and config check. The summary is one sentence on what the program is.
func New(program, summary string) *Set {
	s := &Set{program: program, summary: summary, byName: make(map[string]*Setting)}
	s.Group("General")
	s.String(&s.path, "config", "", `YAML file to read settings from, one "name: value" a line, the names
		being those of the flags. A key that is no setting is refused.`)
	s.commands = []command{
		{words: "help", help: "print this text", run: s.help},
		{words: "config print", help: "print every setting, its value and where the value is from", run: s.Print, loads: true},
		{words: "config check", help: "read and check the settings, then end", loads: true,
			run: s.approve},
		{words: "config list", help: "print what settings there are, as JSON", run: s.list},
	}
	return s
}

// Program returns the program's name.
func (s *Set) Program() string { return s.program }

// Group starts a group: settings declared from here on are listed under title.
func (s *Set) Group(title string) { s.group = title }

// Command adds a word that makes Run write what f returns and end, without
// reading the settings.
func (s *Set) Command(word, help string, f func() (string, error)) {
	s.commands = append(s.commands, command{words: word, help: help, run: f})
}

// Check adds what must hold of the settings together. A program goes on only if
// f finds no fault in what Run has read, and "config check" says the same; so
// nothing that a start would refuse for its settings alone is left to the start.
func (s *Set) Check(f func() error) { s.checks = append(s.checks, f) }

// approve is what "config check" prints.
func (s *Set) approve() (string, error) {
	if err := s.validate(); err != nil {
		return "", err
	}
	text := "the settings are good\n"
	for _, f := range s.foreign {
		text += f.String() + "\n"
	}
	return text, nil
}

// TakeArgs allows positional arguments, which are refused otherwise. The usage
// is how --help shows them, like "<command> [file]".
func (s *Set) TakeArgs(usage string) { s.argsHelp = usage }

// Args returns the positional arguments of the last Run.
func (s *Set) Args() []string { return s.args }

// Settings returns the settings in the order of their declaration.
func (s *Set) Settings() []Setting {
	all := make([]Setting, len(s.settings))
	for i, x := range s.settings {
		all[i] = *x
	}
	return all
}

// Source returns where the value of the named setting is from: "default",
// "file …", "environment …" or "flag …".
func (s *Set) Source(name string) string {
	if x := s.byName[name]; x != nil {
		return x.source
	}
	return ""
}

// add declares one setting of any kind.
func add[T any](s *Set, p *T, name, kind string, def T, help string, opts []Option,
	parse func(string) (T, error), format func(T) string) {
	x := &Setting{
		Name: name, Group: s.group, Kind: kind, Default: format(def),
		Help: strings.Join(strings.Fields(help), " "), source: "default",
	}
	for _, o := range opts {
		o(x)
	}
	x.set = func(text string) error {
		v, err := parse(text)
		if err != nil {
			return err
		}
		for _, check := range x.check {
			if err := check(v); err != nil {
				return err
			}
		}
		*p = v
		return nil
	}
	x.text = func() string { return format(*p) }
	*p = def
	s.declare(x)
	for _, check := range x.check {
		if err := check(def); err != nil {
			s.fault(fmt.Errorf("default of --%s: %w", name, err))
		}
	}
}

func (s *Set) declare(x *Setting) {
	switch {
	case x.Name == "" || strings.Trim(x.Name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || x.Name[0] == '-':
		s.fault(fmt.Errorf("%q is not a name of lower-case letters, digits and dashes", x.Name))
	case s.byName[x.Name] != nil:
		s.fault(fmt.Errorf("--%s is declared twice", x.Name))
	case x.Help == "":
		s.fault(fmt.Errorf("--%s has no help", x.Name))
	}
	s.settings = append(s.settings, x)
	s.byName[x.Name] = x
}

// fault notes a mistake of the program itself, which Run returns.
func (s *Set) fault(err error) {
	s.err = errors.Join(s.err, fmt.Errorf("declaration: %w", err))
}
