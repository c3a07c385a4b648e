// Command kvbench measures the index on recorded schedules, and the router's
// choices.
//
//	kvbench replay --corpus FILE | --wide LENGTHxWORKERS [--modes WLC] [--reps N]
//	kvbench snapshot --blocks N --workers N
//	kvbench select --workers N --blocks N [--mode MODE] [--book]
//	kvbench http --workers N --blocks N --seconds N
//
// It prints one JSON object a line, replay one for each mode and repetition;
// BENCHMARKS.md says what each figure means.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"time"

	"github.com/kvatlas/kvatlas/bench/corpus"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

const usage = `usage: kvbench replay --corpus FILE | --wide LENGTHxWORKERS [flags]
       kvbench select --workers N --blocks N [flags]
       kvbench ingest --mode jetstream|core [flags]
       kvbench snapshot --blocks N --workers N [flags]
       kvbench lab --trace FILE | --workload NAME [flags]
       kvbench http --workers N --blocks N --seconds N [flags]
       kvbench version
`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is main with its surroundings given: 0 for success, 1 for a failed
// measurement, 2 for a wrong command line.
func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return 2
	}
	switch args[0] {
	case "replay":
		o, err := parse(args[1:], stderr)
		switch {
		case errors.Is(err, flag.ErrHelp):
			return 0
		case err != nil:
			fmt.Fprintf(stderr, "kvbench replay: %v\n", err)
			return 2
		}
		if err := measure(o, stdout); err != nil {
			fmt.Fprintf(stderr, "kvbench replay: %v\n", err)
			return 1
		}
		return 0
	case "select":
		return runSelect(args[1:], stdout, stderr)
	case "lab":
		return runLab(args[1:], stdout, stderr)
	case "http":
		return runHTTP(args[1:], stdout, stderr)
	case "ingest":
		o, err := parseIngest(args[1:], stderr)
		switch {
		case errors.Is(err, flag.ErrHelp):
			return 0
		case err != nil:
			fmt.Fprintf(stderr, "kvbench ingest: %v\n", err)
			return 2
		}
		if err := measureIngest(context.Background(), o, stdout); err != nil {
			fmt.Fprintf(stderr, "kvbench ingest: %v\n", err)
			return 1
		}
		return 0
	case "snapshot":
		o, err := parseSnapshot(args[1:], stderr)
		switch {
		case errors.Is(err, flag.ErrHelp):
			return 0
		case err != nil:
			fmt.Fprintf(stderr, "kvbench snapshot: %v\n", err)
			return 2
		}
		if err := measureSnapshot(context.Background(), o, stdout); err != nil {
			fmt.Fprintf(stderr, "kvbench snapshot: %v\n", err)
			return 1
		}
		return 0
	case "version", "--version":
		fmt.Fprintf(stdout, "kvbench %s\n", obs.ReadVersion())
		return 0
	case "help", "-h", "--help":
		fmt.Fprint(stdout, usage)
		return 0
	}
	fmt.Fprintf(stderr, "kvbench: no command %q\n%s", args[0], usage)
	return 2
}

// options are the flags of replay.
type options struct {
	corpus, profile       string
	length, workers       int // of the wide corpus; 0 for none
	modes                 string
	reps, batch, window   int
	shards, spaces, queue int
	lookup                time.Duration
	copies, resident      bool
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var wide string
	f := flag.NewFlagSet("kvbench replay", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.corpus, "corpus", "", "`file` of a recorded schedule (SMGMCK01)")
	f.StringVar(&wide, "wide", "", "instead: `LENGTHxWORKERS`, each worker stores the same chain of LENGTH blocks")
	f.StringVar(&o.modes, "modes", "WLC", "what to measure: W events alone, L lookups on the final state, C both at once")
	f.IntVar(&o.reps, "reps", 1, "repetitions, each on a new index")
	f.IntVar(&o.batch, "batch", 32, "events that one publisher message holds at most")
	f.IntVar(&o.window, "window", 2048, "events among which a publisher's next events are looked for; 1 keeps the recorded order")
	f.IntVar(&o.shards, "shards", 1, "owner goroutines of a space")
	f.IntVar(&o.spaces, "spaces", 1, "W only: spaces that each take all events, each from a writer of its own")
	f.IntVar(&o.queue, "queue", 0, "batches that a shard's queue holds; 0 for the default")
	f.DurationVar(&o.lookup, "lookup", 3*time.Second, "how long L goes on, in whole rounds of its requests")
	f.BoolVar(&o.copies, "copies", true, "count copies, as for raw engine streams")
	f.BoolVar(&o.resident, "resident", false, "W: give free pages back to the system first, and say how much the process grew")
	f.StringVar(&o.profile, "cpuprofile", "", "write a CPU profile of the measurement to `file`")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if wide != "" {
		if n, err := fmt.Sscanf(wide, "%dx%d", &o.length, &o.workers); n != 2 || err != nil || o.length < 1 || o.workers < 1 {
			return o, fmt.Errorf("--wide %q: give LENGTHxWORKERS, for example 512x8", wide)
		}
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case (o.corpus == "") == (wide == ""):
		return o, errors.New("give one of --corpus and --wide")
	case o.spaces > 1 && o.modes != "W":
		return o, errors.New("--spaces is for --modes W")
	case min(o.reps, o.batch, o.window, o.shards, o.spaces) < 1:
		return o, errors.New("--reps, --batch, --window, --shards and --spaces are at least 1")
	}
	for _, m := range o.modes {
		if m != 'W' && m != 'L' && m != 'C' {
			return o, fmt.Errorf("--modes %q: any of W, L and C", o.modes)
		}
	}
	return o, nil
}

// measure reads the corpus and runs every repetition.
func measure(o options, stdout io.Writer) (err error) {
	var c *corpus.Corpus
	if o.corpus == "" {
		c = corpus.Wide(o.length, o.workers)
	} else if c, err = corpus.Open(o.corpus); err != nil {
		return err
	}
	r := newReplay(o, c, stdout)
	if o.profile != "" {
		f, err := os.Create(o.profile)
		if err != nil {
			return fmt.Errorf("make the profile: %w", err)
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		if err := pprof.StartCPUProfile(f); err != nil {
			return fmt.Errorf("profile: %w", err)
		}
		defer pprof.StopCPUProfile()
	}
	for rep := range o.reps {
		if err := r.run(rep); err != nil {
			return err
		}
	}
	return nil
}
