package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Patience is how long the programs may take to start and to expose everything.
const patience = 2 * time.Minute

// family is a metric as a program explains it.
type family struct {
	name, kind, help string
	labels           []string
	programs         []string
	made             bool // it has a sample, or a TYPE line for those to come
}

// serving are the programs with metrics, and how they are started so that
// together they have each way to get events.
var serving = [][]string{
	{"kvindexer", "--http-listen=127.0.0.1:0"},
	{"kvrouter", "--http-listen=127.0.0.1:0", "--picker-listen=127.0.0.1:0", "--picker-pool=p", "--kube-api=http://127.0.0.1:1", "--kube-namespace=n"},
	{"kvpublisher", "--worker=1", "--model=m", "--state-dir=none", "--socket="},
	{"kvpublisher", "--worker=2", "--model=m", "--state-dir=none", "--engine=tcp://127.0.0.1:1"},
	{"kvpods", "--kube-api=http://127.0.0.1:1", "--kube-namespace=n", "--pool=p", "--register-at=http://127.0.0.1:1"},
}

// families runs the programs, built in dir, on a fleet of mock engines, and
// returns what they expose.
func families(ctx context.Context, dir string) (all []*family, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	data, err := os.MkdirTemp("", "kv") // short: a socket's path is at most 107 bytes long
	if err != nil {
		return nil, fmt.Errorf("make a directory for the programs' data: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(data)) }()
	var addresses []string // the files, one for each program
	for i, args := range serving {
		addresses = append(addresses, filepath.Join(data, fmt.Sprint("address", i)))
		if last := len(args) - 1; strings.HasSuffix(args[last], "--socket=") {
			args = append(slices.Clone(args[:last]), args[last]+filepath.Join(data, "socket"))
		}
		cmd := exec.CommandContext(ctx, filepath.Join(dir, args[0]), append(slices.Clone(args[1:]), //nolint:gosec // our own programs
			"--admin-listen=127.0.0.1:0", "--address-file="+addresses[i])...)
		// A variable, as not every program has data.
		cmd.Env = []string{"HOME=/nonexistent", "KVATLAS_DATA_DIR=" + filepath.Join(data, "data"), "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"} // for what there is with traces
		var out strings.Builder
		cmd.Stderr = &out
		if err := cmd.Start(); err != nil {
			return nil, fmt.Errorf("start %s: %w", args[0], err)
		}
		defer func() { //nolint:revive // the programs run beside each other
			_ = cmd.Process.Kill() // its data is thrown away
			_ = cmd.Wait()
			if err != nil {
				text := out.String()
				err = fmt.Errorf("%w\n%s", err, text[max(0, len(text)-2000):])
			}
		}()
		if i > 0 {
			continue
		}
		// The first one runs the NATS server, which all others join.
		if err := waitFor(ctx, func() (bool, error) {
			text, err := scrape(ctx, addresses[0])
			return strings.Contains(text, "\nkvatlas_ready 1\n"), err
		}); err != nil {
			return nil, fmt.Errorf("%s is not ready: %w", args[0], err)
		}
	}
	// Events, so that there is a stream, and a space.
	if _, err := run(ctx, dir, "kvmocker", "--data-dir="+filepath.Join(data, "data"), "--workers=1", "--requests=1",
		"--speed=0", "--progress=none"); err != nil {
		return nil, err
	}
	// What has no kind in the end is a fault, below.
	err = waitFor(ctx, func() (bool, error) {
		var err error
		all, err = union(ctx, addresses)
		return !slices.ContainsFunc(all, func(f *family) bool { return f.kind == "" }), err
	})
	faults := []error{err}
	for _, f := range all {
		faults = append(faults, f.fault())
	}
	return all, errors.Join(faults...)
}

// waitFor waits until f says yes without an error.
func waitFor(ctx context.Context, f func() (bool, error)) error {
	for {
		yes, err := f()
		if yes && err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// union returns what the programs at the addresses expose. All but what counts
// must have a sample with some program: its kind is not known without.
func union(ctx context.Context, addresses []string) (all []*family, err error) {
	byName := map[string]*family{}
	for i, file := range addresses {
		text, err := scrape(ctx, file)
		if err != nil {
			return nil, err
		}
		for _, f := range parse(text) {
			have := byName[f.name]
			if have == nil {
				have = f
				byName[f.name] = f
				all = append(all, f)
			} else if f.help != have.help {
				return nil, fmt.Errorf("%s has two help texts: %q and %q", f.name, f.help, have.help)
			}
			have.kind, have.labels, have.made = max(have.kind, f.kind), append(have.labels, f.labels...), have.made || f.made
			if program := serving[i][0]; !slices.Contains(have.programs, program) {
				have.programs = append(have.programs, program)
			}
		}
	}
	return all, nil
}

// scrape returns what the program exposes whose address is in the file.
func scrape(ctx context.Context, addressFile string) (string, error) {
	address, err := os.ReadFile(addressFile) //nolint:gosec // we have named it
	if err != nil {
		return "", fmt.Errorf("read a program's address: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+strings.TrimSpace(string(address))+"/metrics", nil)
	if err != nil {
		return "", fmt.Errorf("ask for metrics: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", fmt.Errorf("ask for metrics: %w", err)
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", fmt.Errorf("read metrics: %w", err)
	}
	return string(text), nil
}

var (
	sample  = regexp.MustCompile(`^(kvatlas_[a-z0-9_]+)(?:\{(.*)\})? `)
	comment = regexp.MustCompile(`^# (HELP|TYPE) (kvatlas_[a-z0-9_]+) ?(.*)$`)
	label   = regexp.MustCompile(`(?:^|,)([a-z_]+)="(?:[^"\\]|\\.)*"`)
	suffix  = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// parse reads our own families from an exposition.
func parse(text string) (list []*family) {
	byName := map[string]*family{}
	of := func(name string) *family {
		f := byName[name]
		if f == nil {
			f = &family{name: name}
			byName[name] = f
			list = append(list, f)
		}
		return f
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if m := comment.FindStringSubmatch(line); m != nil {
			f := of(m[2])
			if m[1] == "TYPE" {
				f.kind, f.made = m[3], true
			} else if f.help = m[3]; strings.HasSuffix(f.name, "_total") {
				f.kind = "counter" // by the rule of names, which fault holds
			}
			continue
		}
		m := sample.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		f := byName[m[1]]
		if base := suffix.ReplaceAllString(m[1], ""); f == nil && byName[base] != nil {
			f = byName[base]
		}
		if f == nil {
			f = of(m[1])
		}
		f.made = true
		for _, l := range label.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(f.labels, l[1]) {
				f.labels = append(f.labels, l[1])
			}
		}
	}
	return list
}

// Labels that a help text need not name: whose a sample is, and what each
// histogram has. The page says so once.
var common = []string{"model", "block_size", "group", "worker", "dp_rank", "le"}

// fault returns what is missing of a family's explanation, or nil.
func (f *family) fault() error {
	switch {
	case f.help == "":
		return fmt.Errorf("%s has no help text", f.name)
	case f.kind == "":
		return fmt.Errorf("%s has no sample: expose it from the start, as only what counts may be without", f.name)
	case (f.kind == "counter") != strings.HasSuffix(f.name, "_total"):
		return fmt.Errorf("%s is a %s", f.name, f.kind)
	}
	words := strings.FieldsFunc(f.help, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') })
	for _, l := range f.labels {
		if !slices.Contains(common, l) && !slices.Contains(words, l) && f.name != "kvatlas_build_info" {
			return fmt.Errorf("%s: the help text does not name the label %s: %s", f.name, l, f.help)
		}
	}
	return nil
}

const metricsIntro = `# Metrics

All metrics of all programs, as they explain themselves at ` + "`/metrics`" + `. ` + "`make reference`" + ` writes
this page from running programs; do not edit it. What to watch, and what to do about it, is in
[operations.md](operations.md).

Each program has them at its admin port (` + "`--admin-listen`" + `), kvindexer and kvrouter also where clients ask; a program
with the library writes those of its index with ` + "`Atlas.Replica().WriteMetrics(w)`" + `. A counter's name ends with
` + "`_total`" + `; what it counts has no sample before it first happened, but a HELP line. What is of a space has the labels
` + "`model`" + `, ` + "`block_size`" + ` and ` + "`group`" + `; what is of a rank also ` + "`worker`" + ` and ` + "`dp_rank`" + `; other labels are named in the
text. There are those of the process (` + "`process_…`" + `) and of the Go runtime (` + "`go_…`" + `), too.
`

// metricsPage writes the page: a table for each part of the names.
func metricsPage(all []*family) string {
	title := func(f *family) string {
		word, _, _ := strings.Cut(strings.TrimPrefix(f.name, "kvatlas_"), "_")
		switch word {
		case "build", "ready":
			word = ""
		case "dumps", "snapshots":
			word = strings.TrimSuffix(word, "s")
		}
		return strings.TrimSuffix("kvatlas_"+word, "_") + ": " + strings.Join(f.programs, ", ")
	}
	slices.SortFunc(all, func(a, b *family) int {
		return cmp.Or(strings.Compare(title(a), title(b)), strings.Compare(a.name, b.name))
	})
	var b strings.Builder
	b.WriteString(metricsIntro)
	for i, f := range all {
		if i == 0 || title(f) != title(all[i-1]) {
			fmt.Fprintf(&b, "\n## %s\n\n| metric | kind | meaning |\n|---|---|---|\n", title(f))
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.name, f.kind, cell(f.help))
	}
	return b.String()
}
