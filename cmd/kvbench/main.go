// Command kvbench measures the index on recorded schedules, and the router's
// choices.
//
//	kvbench replay --corpus FILE | --wide LENGTHxWORKERS [--modes WLC] [--reps N]
//	kvbench snapshot --blocks N --workers N
//	kvbench select --workers N --blocks N [--mode MODE] [--book]
//	kvbench http --workers N --blocks N --seconds N
//	kvbench picker --target HOST:PORT --body BYTES
//	kvbench fleet --workers N --rate EVENTS --minutes N [--external]
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
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/bench/corpus"
	"github.com/kvatlas/kvatlas/internal/hugemem"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

const usage = `usage: kvbench replay --corpus FILE | --wide LENGTHxWORKERS [flags]
       kvbench select --workers N --blocks N [flags]
       kvbench ingest --mode jetstream|core [flags]
       kvbench fleet --workers N --rate N --minutes N [flags]
       kvbench snapshot --blocks N --workers N [flags]
       kvbench lab --trace FILE | --workload NAME [flags]
       kvbench labtable --traces FOLDER [flags]
       kvbench http --workers N --blocks N --seconds N [flags]
       kvbench picker --target HOST:PORT --body BYTES [flags]
       kvbench version
`

func main() {
	// Here, once a process: a second time the memory would be cleared, and is touched by that.
	if len(os.Args) > 1 && (os.Args[1] == "lab" || os.Args[1] == "labtable") {
		hugemem.Heap(hugeHeap)
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// command reads its flags, measures and prints. A mistake in the flags is a useError.
type command func(ctx context.Context, args []string, stdout, stderr io.Writer) error

func commands() map[string]command {
	return map[string]command{
		"replay": runReplay, "select": runSelect, "ingest": runIngest, "snapshot": runSnapshot, "lab": runLab, "labtable": runLabTable, "http": runHTTP, "picker": runPicker,
		"fleet": runFleet, "fleet-server": runFleetServer, "fleet-workers": runFleetWorkers, // the last two are processes of fleet
	}
}

type useError struct{ error }

func (e useError) Unwrap() error { return e.error }

// run is main with its surroundings given: 0 for success, 1 for a failed
// measurement, 2 for a wrong command line.
func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return 2
	}
	switch args[0] {
	case "version", "--version":
		fmt.Fprintf(stdout, "kvbench %s\n", obs.ReadVersion())
		return 0
	case "help", "-h", "--help":
		fmt.Fprint(stdout, usage)
		return 0
	}
	c := commands()[args[0]]
	if c == nil {
		fmt.Fprintf(stderr, "kvbench: no command %q\n%s", args[0], usage)
		return 2
	}
	err := c(context.Background(), args[1:], stdout, stderr)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintf(stderr, "kvbench %s: %v\n", args[0], err)
	if errors.As(err, new(useError)) {
		return 2
	}
	return 1
}

// newFlags returns the flags of a command, which says what is wrong with them to stderr.
func newFlags(command string, stderr io.Writer) *flag.FlagSet {
	f := flag.NewFlagSet("kvbench "+command, flag.ContinueOnError)
	f.SetOutput(stderr)
	return f
}

// parseFlags reads flags, and nothing beside them; check judges them together.
func parseFlags(f *flag.FlagSet, args []string, check func() error) error {
	err := f.Parse(args)
	if err == nil && f.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if err == nil {
		err = check()
	}
	if err != nil {
		return useError{err}
	}
	return nil
}

// profile writes a CPU profile to the file until stop; without a name it does nothing.
func profile(name string) (stop func() error, err error) {
	if name == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(name)
	if err != nil {
		return nil, fmt.Errorf("make the profile: %w", err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(fmt.Errorf("profile: %w", err), f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
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
	huge                  bool
}

func runReplay(_ context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if o.huge && !hugemem.Heap(hugeHeap) {
		return errors.New("-huge-pages: the system gives none (/sys/kernel/mm/transparent_hugepage/enabled)")
	}
	return measure(o, stdout)
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var wide string
	f := newFlags("replay", stderr)
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
	f.BoolVar(&o.huge, "huge-pages", false, "have the heap on huge pages, as programs with --huge-pages")
	f.StringVar(&o.profile, "cpuprofile", "", "write a CPU profile of the measurement to `file`")
	return o, parseFlags(f, args, func() error {
		if wide != "" {
			if n, err := fmt.Sscanf(wide, "%dx%d", &o.length, &o.workers); n != 2 || err != nil || o.length < 1 || o.workers < 1 {
				return fmt.Errorf("--wide %q: give LENGTHxWORKERS, for example 512x8", wide)
			}
		}
		switch {
		case (o.corpus == "") == (wide == ""):
			return errors.New("give one of --corpus and --wide")
		case o.spaces > 1 && o.modes != "W":
			return errors.New("--spaces is for --modes W")
		case min(o.reps, o.batch, o.window, o.shards, o.spaces) < 1:
			return errors.New("--reps, --batch, --window, --shards and --spaces are at least 1")
		case strings.Trim(o.modes, "WLC") != "":
			return fmt.Errorf("--modes %q: any of W, L and C", o.modes)
		}
		return nil
	})
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
	stop, err := profile(o.profile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	for rep := range o.reps {
		if err := r.run(rep); err != nil {
			return err
		}
	}
	return nil
}
