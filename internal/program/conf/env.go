package conf

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
)

// known lists the settings of every program, a line each: the program's name, a
// colon, and the names of its settings. Package internal/program/reference writes it.
//
//go:embed known.txt
var known string

// Foreign is a variable of the environment, or a key of the file, that is a
// setting of other programs only.
type Foreign struct {
	What     string
	Programs []string
	// InFile: a key of the file that was given to this program, so that whoever
	// wrote it may have meant this program. An environment is shared on purpose.
	InFile bool
}

// String is a sentence without its full stop.
func (f Foreign) String() string {
	return f.What + " is a setting of " + strings.Join(f.Programs, ", ") + ", not of this program"
}

// envName returns the part of a variable's name that stands for the setting.
func envName(setting string) string {
	return strings.ToUpper(strings.ReplaceAll(setting, "-", "_"))
}

// ownPrefix returns what the names of a program's own variables begin with:
// KVATLAS_INDEXER_ for kvindexer.
func ownPrefix(program string) string {
	return envPrefix + envName(strings.TrimPrefix(program, "kv")) + "_"
}

// parseEnv picks the settings from the environment, the program's own variables
// after those that it shares with others, so that they win. An empty variable
// counts as absent, since compose files and charts pass those on for "not set".
// What no program knows is refused; what only others know is kept in s.foreign.
func (s *Set) parseEnv(environ []string) ([]assignment, error) {
	byEnv := make(map[string]*Setting, len(s.settings))
	var names []string
	own := ownPrefix(s.program)
	for _, x := range s.settings {
		byEnv[x.Env()] = x
		byEnv[own+envName(x.Name)] = x
		names = append(names, x.Env(), own+envName(x.Name))
	}
	s.foreign = nil
	var shared, owned []assignment
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, envPrefix) || strings.HasPrefix(name, testPrefix) || value == "" {
			continue
		}
		if isServiceLink(name, value) { // also one that is called as a setting, of a Service kvatlas-nats
			continue
		}
		if x := byEnv[name]; x != nil {
			a := assignment{x, value, "environment " + name}
			if name == x.Env() {
				shared = append(shared, a)
			} else {
				owned = append(owned, a)
			}
			continue
		}
		programs := knowing(s.program, name)
		if len(programs) == 0 {
			return nil, fmt.Errorf("unknown environment variable %s; the nearest is %s", name, nearest(name, names))
		}
		s.foreign = append(s.foreign, Foreign{What: "the variable " + name, Programs: programs})
	}
	return append(shared, owned...), nil
}

// Foreign returns what the last Run found and left to other programs.
func (s *Set) Foreign() []Foreign { return s.foreign }

// knowing returns the programs, other than the one named, that the variable is
// a setting of. A variable with another program's own prefix is that one's to
// judge.
func knowing(but, variable string) (programs []string) {
	for line := range strings.Lines(known) {
		program, names, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok || program == but {
			continue
		}
		if strings.HasPrefix(variable, ownPrefix(program)) {
			return []string{program}
		}
		is := func(name string) bool { return envPrefix+envName(name) == variable }
		if slices.ContainsFunc(strings.Fields(names), is) {
			programs = append(programs, program)
		}
	}
	return programs
}

// isServiceLink reports whether Kubernetes set the variable: for a Service
// named kvatlas-x in the pod's namespace it sets KVATLAS_X_SERVICE_HOST,
// KVATLAS_X_PORT=tcp://… and more
// (https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables).
func isServiceLink(name, value string) bool {
	if strings.HasSuffix(name, "_SERVICE_HOST") || strings.Contains(name, "_SERVICE_PORT") {
		return true
	}
	for _, proto := range []string{"TCP", "UDP", "SCTP"} {
		if strings.HasSuffix(name, "_PORT") && strings.HasPrefix(value, strings.ToLower(proto)+"://") {
			return true
		}
		before, after, ok := strings.Cut(name, "_"+proto)
		if ok && strings.Contains(before, "_PORT_") && slices.Contains([]string{"", "_PROTO", "_PORT", "_ADDR"}, after) {
			return true
		}
	}
	return false
}
