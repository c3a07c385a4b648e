package conf

import (
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
	wrap(&b, "", `Every flag below can also be given as an environment variable (--http-listen is
		KVATLAS_HTTP_LISTEN) or as a key of a YAML file named by --config (http-listen). A flag
		wins over the environment, the environment over the file, the file over the default.`)
	group := ""
	for _, x := range s.settings {
		if x.Group != group {
			group = x.Group
			b.WriteString("\n" + group + "\n")
		}
		def := ""
		switch {
		case x.shownDefault != "":
			def = " (default " + x.shownDefault + ")"
		case x.Default == "" || x.Secret:
		case x.Kind == "string" || x.Kind == "list":
			def = fmt.Sprintf(" (default %q)", x.Default)
		default:
			def = " (default " + x.Default + ")"
		}
		fmt.Fprintf(&b, "  --%s %s%s\n", x.Name, x.Kind, def)
		help := x.Help
		if x.Secret {
			help += " Secret: prefer the environment or the file, since flags show in process lists."
		}
		wrap(&b, "      ", help)
	}
	return b.String(), nil
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

// print returns the present settings as a YAML file that gives the same, each
// with a comment on its source. Secrets that are set show as a comment only.
func (s *Set) print() (string, error) {
	var b strings.Builder
	for _, x := range s.settings {
		switch {
		case x.Name == "config":
			continue
		case x.Secret && x.text() != "":
			fmt.Fprintf(&b, "# %s: (secret, not shown) # %s\n", x.Name, x.source)
			continue
		case x.Secret:
			continue
		}
		text := x.text() // plain: true, 8, 10s
		if x.Kind == "string" || x.Kind == "list" {
			quoted := yaml.Node{Kind: yaml.ScalarNode, Style: yaml.DoubleQuotedStyle, Value: text}
			line, err := yaml.Marshal(&quoted)
			if err != nil {
				return "", fmt.Errorf("printing %s: %w", x.Name, err)
			}
			text = strings.TrimSpace(string(line))
		}
		fmt.Fprintf(&b, "%s: %s # %s\n", x.Name, text, x.source)
	}
	return b.String(), nil
}
