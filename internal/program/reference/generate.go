package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/internal/program/conf"
)

// programs are those with settings, in the order of the document.
var programs = []string{"kvindexer", "kvrouter", "kvpublisher", "kvpods", "kvctl", "kvmocker"}

// bench has flags of another kind, by command.
const bench = "kvbench"

// generated is what the programs say of themselves.
type generated struct {
	files   map[string]string // texts by their names
	metrics []*family
}

// generate asks the programs that are in dir.
func generate(ctx context.Context, dir string) (*generated, error) {
	lists, err := ask(ctx, dir)
	if err != nil {
		return nil, err
	}
	commands, err := benchCommands(ctx, dir)
	if err != nil {
		return nil, err
	}
	metrics, err := families(ctx, dir)
	if err != nil {
		return nil, err
	}
	return &generated{metrics: metrics, files: map[string]string{
		docFile: document(lists, commands), knownFile: knownNames(lists), chartFile: chartNames(lists), metricsFile: metricsPage(metrics),
	}}, nil
}

// build builds the programs into dir.
func build(ctx context.Context, root, dir string) error {
	args := []string{"build", "-trimpath", "-ldflags=-s -w", "-o", dir + string(filepath.Separator)}
	for _, p := range append(slices.Clone(programs), bench) {
		args = append(args, "./cmd/"+p)
	}
	cmd := exec.CommandContext(ctx, "go", args...) //nolint:gosec // our own programs
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as the tests that build programs: compiled once
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return nil
}

// ask returns what each program lists.
func ask(ctx context.Context, dir string) ([]conf.List, error) {
	var lists []conf.List
	for _, p := range programs {
		text, err := run(ctx, dir, p, "config", "list")
		if err != nil {
			return nil, err
		}
		var l conf.List
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			return nil, fmt.Errorf("read what %s lists: %w", p, err)
		}
		lists = append(lists, l)
	}
	return lists, nil
}

// run returns what a program prints in an environment without settings.
func run(ctx context.Context, dir, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(dir, program), args...) //nolint:gosec // our own programs
	cmd.Env = []string{"HOME=/nonexistent"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("run %s %v: %w\n%s", program, args, err, out)
	}
	return string(out), nil
}

// command is a command of kvbench and the text of its help.
type command struct{ name, help string }

var benchUsage = regexp.MustCompile(`(?m)^(?:usage:)? +kvbench ([a-z]+) -`)

func benchCommands(ctx context.Context, dir string) ([]command, error) {
	usage, err := run(ctx, dir, bench, "help")
	if err != nil {
		return nil, err
	}
	var all []command
	for _, m := range benchUsage.FindAllStringSubmatch(usage, -1) {
		help, err := run(ctx, dir, bench, m[1], "-h")
		if err != nil {
			return nil, err
		}
		all = append(all, command{m[1], help})
	}
	return all, nil
}

// knownNames writes the file that package conf embeds.
func knownNames(lists []conf.List) string {
	var b strings.Builder
	for _, l := range lists {
		b.WriteString(l.Program + ":")
		for _, s := range l.Settings {
			b.WriteString(" " + s.Name)
		}
		b.WriteString("\n")
	}
	return b.String()
}

const intro = `# Configuration

All settings of all programs, as they describe them. ` + "`make reference`" + ` writes this
page; do not edit it.

A setting has one name everywhere. Of the sources that give it, the first wins:

1. the flag: ` + "`--http-listen 0.0.0.0:8090`" + `, or with ` + "`=`" + `;
2. the program's own environment variable: ` + "`KVATLAS_INDEXER_HTTP_LISTEN`" + ` for kvindexer,
   ` + "`KVATLAS_ROUTER_…`" + ` for kvrouter, ` + "`KVATLAS_PUBLISHER_…`" + ` for kvpublisher, ` + "`KVATLAS_CTL_…`" + ` for
   kvctl, and so on;
3. the variable that all programs with such a setting share: ` + "`KVATLAS_HTTP_LISTEN`" + `;
4. the key ` + "`http-listen`" + ` in the YAML file that ` + "`--config`" + ` or ` + "`KVATLAS_CONFIG`" + ` names, one
   ` + "`name: value`" + ` a line;
5. the default.

What no program knows is refused, with the nearest name. A variable or a key that only
other programs know is left to them, so several programs can share an environment and
a file; ` + "`config print`" + ` names what was left. An empty variable counts as absent.
` + "`config print`" + ` prints every value and where it is from, ` + "`config check`" + ` reads and
checks them, ` + "`config list`" + ` prints what there is as JSON. Passwords and whatever
else stands before the @ of a URL are never printed.

kvindexer and kvrouter go by OpenTelemetry's own variables, too: [traces.md](traces.md).

Sizes are written as 512MiB or 8GB, durations as 500ms, 10s or 1h30m, lists with
commas (or as YAML sequences).
`

// document writes the page.
func document(lists []conf.List, commands []command) string {
	var b strings.Builder
	b.WriteString(intro)
	for _, l := range lists {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n```\n%s\n```\n", l.Program, sentence(l.Summary), strings.Join(l.Usage, "\n"))
		group := ""
		for _, s := range l.Settings {
			if s.Group != group {
				group = s.Group
				fmt.Fprintf(&b, "\n### %s: %s\n\n| flag | kind | default | limits | meaning |\n|---|---|---|---|---|\n", l.Program, group)
			}
			fmt.Fprintf(&b, "| `--%s` | %s | %s | %s | %s |\n", s.Name, s.Kind, cell(s.Default), limits(&s), help(&s))
		}
	}
	fmt.Fprintf(&b, "\n## %s\n\nMeasures; [BENCHMARKS.md](../BENCHMARKS.md) says what. It reads flags only.\n", bench)
	for _, c := range commands {
		fmt.Fprintf(&b, "\n```\n%s\n```\n", strings.TrimSpace(strings.ReplaceAll(c.help, "\t", "    ")))
	}
	return b.String()
}

func sentence(text string) string {
	return strings.ToUpper(text[:min(1, len(text))]) + text[min(1, len(text)):]
}

func limits(s *conf.Listed) string {
	if s.Least == "" && s.Most == "" {
		return ""
	}
	return s.Least + " … " + s.Most
}

func help(s *conf.Listed) string {
	text := s.Help
	if s.Secret && s.Kind == "string" {
		text += " With a password, prefer the environment or the file."
	}
	return cell(text)
}

// cell escapes what would end a table's cell.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`).Replace(text)
}

// chartNames is every program's settings by name, for the chart, which refuses others, and in a
// ConfigMap those that are secrets as a whole.
func chartNames(lists []conf.List) string {
	var b strings.Builder
	b.WriteString("# Made by `make reference`: the settings of each program, by which the chart judges names.\n")
	secrets := map[string]bool{}
	for _, l := range lists {
		fmt.Fprintf(&b, "%s:\n", l.Program)
		for _, x := range l.Settings {
			fmt.Fprintf(&b, "  - %s\n", x.Name)
			if x.Kind == "credential" {
				secrets[x.Name] = true
			}
		}
	}
	b.WriteString("secret:\n")
	for _, name := range slices.Sorted(maps.Keys(secrets)) {
		fmt.Fprintf(&b, "  - %s\n", name)
	}
	return b.String()
}
