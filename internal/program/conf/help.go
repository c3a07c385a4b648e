package conf

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// helpWidth is the column at which --help wraps.
const helpWidth = 80

// help returns the text of --help: every setting with its default, by group.
func (s *Set) help() (string, error) {
	var b strings.Builder
	b.WriteString(s.program + ": " + s.summary + "\n\nUsage:\n")
	fmt.Fprintf(&b, "  %s\n", strings.TrimSpace(s.program+" [flags] "+s.argsHelp))
	for _, c := range s.commands {
		fmt.Fprintf(&b, "  %-34s %s\n", s.program+" "+c.words, c.help)
	}
	b.WriteString("\n")
	example := s.settings[min(1, len(s.settings)-1)]
	wrap(&b, "", fmt.Sprintf(`Every flag below can also be given as an environment variable or as a key of a
		YAML file named by --config: --%s is %s, or %s for this program alone, and the key %s. A flag wins
		over the environment, the environment over the file, the file over the default.`,
		example.Name, example.Env(), ownPrefix(s.program)+envName(example.Name), example.Name))
	group := ""
	for _, x := range s.settings {
		if x.Group != group {
			group = x.Group
			b.WriteString("\n" + group + "\n")
		}
		def := ""
		switch {
		case x.shownDefault == "" && (x.Kind == "string" || x.Kind == "list") && x.Default != "":
			def = fmt.Sprintf(" (default %q)", x.Default)
		case cmp.Or(x.shownDefault, x.Default) != "":
			def = " (default " + cmp.Or(x.shownDefault, x.Default) + ")"
		}
		fmt.Fprintf(&b, "  --%s %s%s\n", x.Name, x.Kind, def)
		help := x.Help
		if x.Kind == kindCredential {
			help += " Prefer the environment or the file: flags show in process lists."
		} else if x.Secret {
			help += " With a password, prefer the environment or the file: flags show in process lists."
		}
		wrap(&b, "      ", help)
	}
	return b.String(), nil
}

// Listed is one setting as `config list` prints it.
type Listed struct {
	Name        string `json:"name"`         // the flag, without dashes, and the key of the file
	Environment string `json:"environment"`  // shared with other programs
	Own         string `json:"own_variable"` // this program's alone
	Group       string `json:"group"`
	Kind        string `json:"kind"`
	Default     string `json:"default"`
	Least       string `json:"least,omitempty"`
	Most        string `json:"most,omitempty"`
	Secret      bool   `json:"secret,omitempty"`
	Help        string `json:"help"`
}

// List is what `config list` prints.
type List struct {
	Program  string   `json:"program"`
	Summary  string   `json:"summary"`
	Usage    []string `json:"usage"`
	Settings []Listed `json:"settings"`
}

// list returns the settings as JSON, for references and tools.
func (s *Set) list() (string, error) {
	l := List{Program: s.program, Summary: s.summary, Usage: []string{strings.TrimSpace(s.program + " [flags] " + s.argsHelp)}}
	for _, c := range s.commands {
		l.Usage = append(l.Usage, s.program+" "+c.words)
	}
	for _, x := range s.settings {
		l.Settings = append(l.Settings, Listed{x.Name, x.Env(), ownPrefix(s.program) + envName(x.Name), x.Group, x.Kind,
			cmp.Or(x.shownDefault, x.Default),
			x.Least, x.Most, x.Secret, x.Help})
	}
	text, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return "", fmt.Errorf("listing the settings: %w", err)
	}
	return string(text) + "\n", nil
}

// wrap writes the text in lines of at most helpWidth columns.
func wrap(b *strings.Builder, indent, text string) {
	column := 0
	for _, word := range strings.Fields(text) {
		switch {
		case column == 0:
			b.WriteString(indent + word)
			column = len(indent) + len(word)
		case column+1+len(word) > helpWidth:
			b.WriteString("\n" + indent + word)
			column = len(indent) + len(word)
		default:
			b.WriteString(" " + word)
			column += 1 + len(word)
		}
	}
	b.WriteString("\n")
}

// Print returns the present settings as a YAML file that gives the same, each
// with a comment on its source. Those with credentials show as a comment only,
// without these.
func (s *Set) Print() (string, error) {
	var b strings.Builder
	for _, x := range s.settings {
		if x.Name == "config" {
			continue
		}
		text := x.shown(x.text()) // plain: true, 8, 10s
		if text != x.text() {
			b.WriteString("# without credentials: ")
		}
		if x.Kind == "string" || x.Kind == "list" || x.Kind == kindCredential {
			quoted := yaml.Node{Kind: yaml.ScalarNode, Style: yaml.DoubleQuotedStyle, Value: text}
			line, err := yaml.Marshal(&quoted)
			if err != nil {
				return "", fmt.Errorf("printing %s: %w", x.Name, err)
			}
			text = strings.TrimSpace(string(line))
		}
		fmt.Fprintf(&b, "%s: %s # %s\n", x.Name, text, x.source)
	}
	for _, f := range s.foreign {
		b.WriteString("# " + f.String() + "\n")
	}
	return b.String(), nil
}
