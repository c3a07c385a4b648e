package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// labSetting is one table: a fleet and its requests, for every row.
type labSetting struct {
	group, name string
	args        string // of kvbench lab; TRACES/ stands for the folder of the traces
	rows        string
}

// Rows of the tables. Those of robustness are those that can be hurt by what it is about.
const (
	tableRows = "round-robin,smg,llm-d,llm-d-lmetric,prefill-x-batch," +
		"dynamo,dynamo-scale-4,dynamo-scale-8,dynamo-scale-16,dynamo-scale-32,dynamo-scale-64,dynamo-scale-128,dynamo-scale-256,dynamo-scale-512,dynamo-scale-1024," +
		"dynamo-scale-32+fcfs-0,dynamo-scale-32+fcfs-0.25,dynamo-scale-32+wspt-0,dynamo-scale-32+wspt-0.05,dynamo-scale-32+wspt-0.25,dynamo-scale-32+wspt-1," +
		"dynamo-scale-8+credit-1.5,dynamo-scale-8+decay-1,dynamo-scale-8+requests-64,dynamo-scale-8+temperature-0.2,auto,bound-fcfs,bound-wspt"
	closedRows = "round-robin,smg,llm-d,prefill-x-batch,dynamo,dynamo-scale-32,dynamo-scale-1024,dynamo-scale-32+wspt-0,auto"
	robustRows = "round-robin,dynamo,dynamo-scale-32,dynamo-scale-32+wspt-0,auto,auto+peers"
)

// Groups, in the order of the page.
const (
	conversation = "Conversation trace"
	agentic      = "Agentic trace, sessions started at random"
	closedLoop   = "Agents that wait for their answers"
	generated    = "Generated requests, 8 engines"
	robustness   = "Robustness: conversation trace, 8 engines, ×2"
)

func labSettings() (all []labSetting) {
	add := func(group, rows, name, format string, args ...any) {
		all = append(all, labSetting{group, name, fmt.Sprintf(format, args...), rows})
	}
	for _, s := range [][2]string{{"4", "1"}, {"4", "2"}, {"4", "3"}, {"8", "0.2"}, {"8", "1"}, {"8", "2"}, {"8", "3"}, {"16", "2"}, {"16", "4"}} {
		add(conversation, tableRows, s[0]+" engines, ×"+s[1], "--trace TRACES/conversation.jsonl.zst --workers %s --speedup %s", s[0], s[1])
	}
	for _, s := range [][2]string{{"8", "0.3"}, {"16", "0.5"}, {"16", "0.7"}, {"16", "1"}} {
		add(agentic, tableRows, s[0]+" engines, ×"+s[1], "--trace TRACES/agentic.jsonl.zst --restart-sessions --requests 6000 --workers %s --speedup %s", s[0], s[1])
	}
	for _, s := range [][2]string{{"8", "0.5"}, {"8", "1"}} {
		add(closedLoop, closedRows, s[0]+" engines, ×"+s[1], "--trace TRACES/agentic.jsonl.zst --restart-sessions --requests 6000 --closed-loop --think 2s --workers %s --speedup %s", s[0], s[1])
	}
	for _, s := range [][2]string{{"uniform", "20"}, {"uniform", "60"}, {"zipf", "10"}, {"zipf", "40"}, {"bursts", "20"}, {"bursts", "60"}, {"giant", "20"}, {"giant", "60"}, {"unshared", "10"}, {"unshared", "30"},
		{"chats", "60"}, {"chats", "400"}, {"documents", "3"}, {"documents", "14"}, {"branches", "10"}, {"branches", "50"},
		{"reasoning", "2"}, {"reasoning", "8"}, {"tenants", "10"}, {"tenants", "60"},
	} {
		add(generated, tableRows, s[0]+", "+s[1]+"/s", "--workload %s --rate %s", s[0], s[1])
	}
	for _, s := range [][2]string{
		{"nothing is wrong", ""},
		{"events 100 ms late", "--event-delay 100ms"},
		{"1 % of events lost for ever", "--event-loss 0.01"},
		{"1 % lost, 1 s late", "--event-loss 0.01 --event-delay 1s"},
		{"2 routers, 10 ms apart", "--routers 2 --sync-delay 10ms"},
		{"4 routers, 10 ms apart", "--routers 4 --sync-delay 10ms"},
		{"8 routers, 10 ms apart", "--routers 8 --sync-delay 10ms"},
		{"one worker 3 × slower", "--slow 0:3"},
		{"one worker 10 × slower for 5 minutes", "--slow-at 0:300s:10,0:600s:1"},
		{"speeds change by 3 × through a day of 10 minutes", "--day 10m --day-slow 3"},
		{"a worker dies at 900 s", "--die 3:900s"},
		{"two workers join empty, at 600 and 900 s", "--join 6:600s,7:900s"},
	} {
		add(robustness, robustRows, s[0], "--trace TRACES/conversation.jsonl.zst --workers 8 --speedup 2 %s", s[1])
	}
	for _, s := range [][3]string{{"every engine 10 × slower than the first guess, ×0.2", "10", "0.2"}, {"every engine 10 × faster, ×20", "0.1", "20"}} {
		var slow []string
		for w := range 8 {
			slow = append(slow, fmt.Sprintf("%d:%s", w, s[1]))
		}
		add(robustness, robustRows, s[0], "--trace TRACES/conversation.jsonl.zst --workers 8 --speedup %s --slow %s", s[2], strings.Join(slow, ","))
	}
	return all
}

// labTableOptions are the flags of labtable.
type labTableOptions struct {
	traces, state, out, again, only, rows string
	seeds                                 int
	done                                  map[string]labRow // by key
}

func runLabTable(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := &labTableOptions{done: make(map[string]labRow)}
	f := newFlags("labtable", stderr)
	f.StringVar(&o.traces, "traces", "", "`folder` of conversation.jsonl.zst and agentic.jsonl.zst")
	f.StringVar(&o.state, "state", "bin/lab-table.jsonl", "`file` of the runs that are done; those are not run again")
	f.StringVar(&o.out, "out", "docs/routing-table.md", "`file` to write the tables to")
	f.StringVar(&o.again, "again", "", "`policies` to run again though they are done, such as auto")
	f.StringVar(&o.only, "only", "", "`pattern` of settings to run; the page has what is done")
	f.StringVar(&o.rows, "rows", "", "`policies` to run, of those that there are")
	f.IntVar(&o.seeds, "seeds", 3, "seeds a row, where chance has a part in it")
	if err := parseFlags(f, args, func() error {
		if o.traces == "" {
			return errors.New("give --traces")
		}
		return nil
	}); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	if err := o.run(ctx, stdout, stderr); err != nil {
		return err
	}
	return toFile(o.out, o.page)
}

func key(s *labSetting, policy string) string { return s.group + "/" + s.name + "/" + policy }

// labDone is a line of the state.
type labDone struct {
	Key string `json:"key"`
	Row labRow `json:"row"`
}

// load reads what earlier calls have run; of two runs the later counts.
func (o *labTableOptions) load() error {
	f, err := os.Open(o.state)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the runs that are done: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	for d := json.NewDecoder(f); d.More(); {
		var l labDone
		if err := d.Decode(&l); err != nil {
			return fmt.Errorf("read the runs that are done from %s, remove it to begin anew: %w", o.state, err)
		}
		o.done[l.Key] = l.Row
	}
	return nil
}

// run runs what is to be run, a row of a setting at a time. Each is kept at once, so a call may be cut off
// at any time and the next goes on there.
func (o *labTableOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	if err := o.load(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(o.state), 0o750); err != nil {
		return fmt.Errorf("keep the runs: %w", err)
	}
	f, err := os.OpenFile(o.state, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("keep the runs: %w", err)
	}
	defer f.Close() //nolint:errcheck // each write is checked
	again, wanted := strings.Split(o.again, ","), strings.Split(o.rows, ",")
	for _, s := range labSettings() {
		for policy := range strings.SplitSeq(s.rows, ",") {
			k := key(&s, policy)
			if _, done := o.done[k]; done && !slices.Contains(again, policy) || !only.MatchString(s.group+"/"+s.name) || o.rows != "" && !slices.Contains(wanted, policy) {
				continue
			}
			row, err := o.row(ctx, &s, policy, stderr)
			if err != nil {
				return fmt.Errorf("%s: %w", k, err)
			}
			o.done[k] = row
			if err := json.NewEncoder(f).Encode(labDone{k, row}); err != nil {
				return fmt.Errorf("keep the runs: %w", err)
			}
			fmt.Fprintf(stdout, "%s: %.1f ms\n", k, row.TTFTMean)
		}
	}
	return nil
}

func (o *labTableOptions) row(ctx context.Context, s *labSetting, policy string, stderr io.Writer) (labRow, error) {
	args := strings.Fields(strings.ReplaceAll(s.args, "TRACES", o.traces))
	l, err := parseLab(append(args, "--quiet"), stderr)
	if err != nil {
		return labRow{}, err
	}
	l.seeds = o.seeds
	// Chance has no part in these on a trace as it is, with nothing lost.
	fixed := policy == "round-robin" || strings.HasPrefix(policy, "bound-")
	if fixed && l.trace != "" && !l.restart && l.cfg.EventLoss == 0 {
		l.seeds = 1
	}
	return l.overSeeds(ctx, policy, stderr)
}
