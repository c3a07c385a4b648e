package conf

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Run reads the settings from the arguments (without the program's name), the
// environment (as os.Environ gives it) and the YAML file. It reports whether
// the program is to go on: not after --help or a command, whose text it has
// written to out. Every error is one of use; programs exit with code 2.
func (s *Set) Run(args, environ []string, out io.Writer) (proceed bool, err error) {
	if s.err != nil {
		return false, s.err
	}
	flags, words, err := s.parseArgs(args)
	if err != nil {
		return false, err
	}
	cmd, err := s.command(words)
	if err != nil {
		if slices.ContainsFunc(flags, func(a assignment) bool { return a.setting.Kind == kindCredential }) {
			err = errors.New("unexpected argument; it is not shown, as it may be a part of what a flag was to have: give that in quotes")
		}
		return false, err
	}
	if cmd == nil || cmd.loads {
		if err := s.load(flags, environ); err != nil {
			return false, err
		}
	}
	if cmd == nil {
		s.args = words
		if err := s.validate(); err != nil {
			return false, s.HideIn(err)
		}
		return true, nil
	}
	text, err := cmd.run()
	if err != nil {
		return false, fmt.Errorf("%s: %w", cmd.words, s.HideIn(err))
	}
	if _, err := io.WriteString(out, text); err != nil {
		return false, fmt.Errorf("writing to standard output: %w", err)
	}
	return false, nil
}

// Wrong is an error of the settings that shows only once they are used, as where they
// name a server of another kind. Programs exit with code 2, as for errors of Run.
type Wrong struct{ Err error }

func (w Wrong) Error() string { return w.Err.Error() }

// Unwrap returns the error itself.
func (w Wrong) Unwrap() error { return w.Err }

// command returns the command that the words name, or nil if there are no
// words or they are the program's own arguments.
func (s *Set) command(words []string) (*command, error) {
	if len(words) == 0 {
		return nil, nil
	}
	var names []string
	for i := range s.commands {
		if s.commands[i].words == strings.Join(words, " ") {
			return &s.commands[i], nil
		}
		names = append(names, s.commands[i].words)
	}
	if s.argsHelp != "" {
		return nil, nil
	}
	given := HideCredentials(strings.Join(words, " "))
	return nil, fmt.Errorf("unexpected argument %q; the nearest command is %q", given, nearest(given, names))
}

// assignment is one value that one source gives to one setting.
type assignment struct {
	setting *Setting
	value   string
	source  string
}

// load applies the sources to the settings, the stronger one later.
func (s *Set) load(flags []assignment, environ []string) error {
	env, err := s.parseEnv(environ)
	if err != nil {
		return err
	}
	all := slices.Concat(env, flags)
	for _, a := range all {
		if a.setting.Name == "config" {
			s.path = a.value
		}
	}
	if s.path != "" {
		file, err := s.parseFile(s.path)
		if err != nil {
			return err
		}
		all = slices.Concat(file, all)
	}
	for _, a := range all {
		if err := a.setting.set(a.value); err != nil {
			return fmt.Errorf("%s: %w", a.source, a.setting.hide(a.value, err))
		}
		a.setting.source = a.source
	}
	return nil
}

// validate runs what the program has to say of its settings together.
func (s *Set) validate() error {
	for _, check := range s.checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// parseArgs splits arguments into flags and words. Flags may stand among
// words; everything after "--" is a word. Of a flag given twice the last value
// holds.
// --help, -h and --version stand for the commands, whatever else is given.
func (s *Set) parseArgs(args []string) (flags []assignment, words []string, err error) {
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			return flags, append(words, args[i+1:]...), nil
		}
		if len(arg) < 2 || arg[0] != '-' {
			words = append(words, arg)
			continue
		}
		name, value, hasValue := strings.Cut(strings.TrimPrefix(arg[1:], "-"), "=")
		x := s.byName[name]
		switch {
		case name == "help" || name == "h":
			return nil, []string{"help"}, nil
		case name == "version" && x == nil && s.hasCommand(name):
			return nil, []string{name}, nil
		case x == nil && strings.ContainsAny(name, " \t\r\n"): // one argument, as in a list of a manifest
			name = strings.Fields(name + " -")[0]
			return nil, nil, fmt.Errorf("unknown flag --%s with a space behind it: give its value behind =, or as an argument of its own", HideCredentials(name))
		case x == nil:
			return nil, nil, fmt.Errorf("unknown flag --%s; the nearest is --%s", HideCredentials(name), s.nearestName(name))
		}
		switch {
		case hasValue:
		case x.Kind == "bool":
			value = "true"
			if i+1 < len(args) && (args[i+1] == "true" || args[i+1] == "false") {
				i++ // no word of any program: meant as the value
				value = args[i]
			}
		case i+1 == len(args):
			return nil, nil, fmt.Errorf("flag --%s needs a value", name)
		default:
			i++
			value = args[i]
		}
		flags = append(flags, assignment{x, value, "flag --" + name})
	}
	return flags, words, nil
}

func (s *Set) hasCommand(words string) bool {
	return slices.ContainsFunc(s.commands, func(c command) bool { return c.words == words })
}

func (s *Set) nearestName(name string) string {
	names := make([]string, len(s.settings))
	for i, x := range s.settings {
		names[i] = x.Name
	}
	return nearest(name, names)
}

// nearest returns the known name with the smallest edit distance to name.
func nearest(name string, known []string) string {
	best, bestDistance := "", -1
	for _, k := range known {
		if d := distance(name, k); bestDistance < 0 || d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best
}

// distance is the Levenshtein distance: the fewest insertions, removals and
// replacements of a byte that turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
