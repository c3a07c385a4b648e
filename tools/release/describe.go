package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// about is what a program says of its settings, by `config list`.
type about struct {
	Program, Summary string
	Usage            []string
	Settings         []struct{ Name, Environment, Group, Kind, Default, Help string }
}

// describe makes what goes with the programs: man pages, completions, units, licences.
func (r *release) describe() error {
	for _, p := range programs {
		text, err := run(r.tmp, nil, r.program(runtime.GOOS+"/"+runtime.GOARCH, p), "config", "list")
		if err != nil {
			return err
		}
		var a about
		if err := json.Unmarshal([]byte(text), &a); err != nil {
			return fmt.Errorf("%s config list: %w", p, err)
		}
		r.doc("man/"+p+".1", a.man(r))
		r.doc("completions/"+p+".bash", a.bash())
		r.doc("completions/_"+p, a.zsh())
		r.doc("completions/"+p+".fish", a.fish())
	}
	for from, to := range map[string]string{"LICENSE": "LICENSE", "README.md": "README.md", "CHANGELOG.md": "CHANGELOG.md", "SECURITY.md": "SECURITY.md"} {
		if err := r.copy(from, to); err != nil {
			return err
		}
	}
	units, err := filepath.Glob(filepath.Join(r.src, "deploy/systemd/*"))
	if err != nil {
		return err
	}
	for _, path := range units {
		if err := r.copy("deploy/systemd/"+filepath.Base(path), "systemd/"+filepath.Base(path)); err != nil {
			return err
		}
	}
	slices.SortFunc(r.modules, func(a, b module) int { return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.version, b.version)) })
	r.modules = slices.Compact(r.modules)
	if err := r.notices(); err != nil {
		return err
	}
	return r.sbom()
}

func (r *release) doc(name, text string) {
	r.docs = append(r.docs, file{name: name, mode: 0o644, data: []byte(text)})
}

func (r *release) copy(from, to string) error {
	data, err := os.ReadFile(filepath.Join(r.src, from))
	r.doc(to, string(data))
	return err
}

func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	return regexp.MustCompile(`(?m)^([.'])`).ReplaceAllString(text, `\&$1`)
}

// man is the program's manual page.
func (a *about) man(r *release) string {
	var b strings.Builder
	brief, rest, _ := strings.Cut(a.Summary, "\n")
	fmt.Fprintf(&b, ".TH %s 1 %s %q\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.nf\n%s\n.fi\n", strings.ToUpper(a.Program), r.time.Format("2006-01-02"),
		"kvatlas "+r.bare(), a.Program, roff(brief), roff(strings.Join(a.Usage, "\n")))
	if rest != "" {
		fmt.Fprintf(&b, ".SH DESCRIPTION\n.nf\n%s\n.fi\n", roff(strings.Trim(rest, "\n")))
	}
	group := ""
	for _, s := range a.Settings {
		if s.Group != group {
			group = s.Group
			fmt.Fprintf(&b, ".SH %s\n", roff(strings.ToUpper(group)))
		}
		fmt.Fprintf(&b, ".TP\n.BI %s \" %s\"\n%s\n", roff("--"+s.Name), s.Kind, roff(s.Help))
		if s.Default != "" {
			fmt.Fprintf(&b, "Default: %s.\n", roff(s.Default))
		}
		fmt.Fprintf(&b, "Variable: %s.\n", s.Environment)
	}
	return b.String()
}

// commands are the first words that every program takes.
const commands = "help config version"

func (a *about) bash() string {
	words := strings.Fields(commands)
	for _, s := range a.Settings {
		words = append(words, "--"+s.Name)
	}
	return fmt.Sprintf("_%[1]s() { COMPREPLY=($(compgen -W '%[2]s' -- \"${COMP_WORDS[COMP_CWORD]}\")); }\ncomplete -o default -F _%[1]s %[1]s\n",
		a.Program, strings.Join(words, " "))
}

// sentence is the first one of a help text.
func sentence(help string) string {
	if i := strings.Index(help, ". "); i >= 0 {
		help = help[:i]
	}
	return strings.TrimSuffix(help, ".")
}

func (a *about) zsh() string {
	var b strings.Builder
	fmt.Fprintf(&b, "#compdef %s\n_arguments \\\n  '1::command:(%s)' \\\n", a.Program, commands)
	for _, s := range a.Settings {
		help := strings.NewReplacer("'", `'\''`, "[", `\[`, "]", `\]`, ":", `\:`).Replace(sentence(s.Help))
		if s.Kind == "bool" {
			fmt.Fprintf(&b, "  '--%s[%s]' \\\n", s.Name, help)
		} else {
			fmt.Fprintf(&b, "  '--%s=[%s]:%s:_files' \\\n", s.Name, help, s.Kind)
		}
	}
	b.WriteString("  '*:: :_files'\n")
	return b.String()
}

func (a *about) fish() string {
	var b strings.Builder
	fmt.Fprintf(&b, "complete -c %s -n __fish_use_subcommand -a '%s'\n", a.Program, commands)
	for _, s := range a.Settings {
		value := " -r"
		if s.Kind == "bool" {
			value = ""
		}
		fmt.Fprintf(&b, "complete -c %s -l %s%s -d '%s'\n", a.Program, s.Name, value, strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(sentence(s.Help)))
	}
	return b.String()
}
