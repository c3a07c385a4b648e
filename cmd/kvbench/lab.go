package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/bench/lab"
	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/trace"
	"github.com/kvatlas/kvatlas/route"
)

// labOptions are the flags of lab.
type labOptions struct {
	cfg             lab.Config
	trace, workload string
	idTokens        int
	rate            float64
	policies, slow  string
	die, joins      string
	slows           string
	sweeps          []string
	seeds           int
	json, plot      string
	html            string
	rows            []labRow
	points          []lab.Point
	panels          []lab.Panel
	quiet, restart  bool
	profile         string
	flags           *flag.FlagSet
}

// labRow is what lab prints for one policy and setting. Times are in ms.
type labRow struct {
	Policy          string            `json:"policy"`
	Workers         int               `json:"workers"`
	SpeedUp         float64           `json:"speedup"`
	Setting         map[string]string `json:"setting,omitempty"`
	Requests        int               `json:"requests"`
	Refused         int               `json:"refused"`
	Within          *float64          `json:"within,omitempty"` // part of the requests that kept the targets; nil where there are none
	Reuse           float64           `json:"reuse"`
	Loaded          float64           `json:"loaded,omitempty"` // of the reuse, what came from lower tiers
	TTFTMean        float64           `json:"ttft_mean_ms"`
	TTFTP50         float64           `json:"ttft_p50_ms"`
	TTFTP99         float64           `json:"ttft_p99_ms"`
	TPOTMean        float64           `json:"tpot_mean_ms"`
	E2EMean         float64           `json:"e2e_mean_ms"`
	E2EP99          float64           `json:"e2e_p99_ms"`
	OutputPerSecond float64           `json:"output_tokens_per_s"`
	LoadMaxOverMean float64           `json:"load_max_over_mean"`
	Waiting         float64           `json:"waiting_mean_ms"` // of a request's time to its end, with the next three
	Computing       float64           `json:"computing_mean_ms"`
	Decoding        float64           `json:"decoding_mean_ms"`
	Preempted       float64           `json:"preempted_mean_ms"`
	Preemptions     float64           `json:"preemptions"`
	SessionMean     float64           `json:"session_mean_s,omitempty"` // from first request to last end, in a closed loop
	SessionP99      float64           `json:"session_p99_s,omitempty"`
	Events          uint64            `json:"events"`
	Dumps           uint64            `json:"dumps,omitempty"` // of workers whose engines contradicted the index
	Seconds         float64           `json:"seconds"`         // of virtual time
	// Seeds is set where the figures are means over several, and Spread then has
	// the least and the greatest of each by its name.
	Seeds  int                   `json:"seeds,omitempty"`
	Spread map[string][2]float64 `json:"spread,omitempty"`
}

// labPolicies are compared where none is named.
const labPolicies = "round-robin,smg,llm-d,prefill-x-batch,dynamo,dynamo-scale-8,dynamo-scale-32,dynamo-scale-32+wspt-0,auto"

// hugeHeap is the bytes of the heap that are on huge pages, where they are asked for: more than a million requests of the lab on 256 engines use.
const hugeHeap = 2000 << 20

func runLab(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parseLab(args, stderr)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	end, err := profile(o.profile)
	if err != nil {
		return err
	}
	return errors.Join(o.run(ctx, stdout, stderr), end())
}

func parseLab(args []string, stderr io.Writer) (*labOptions, error) {
	o := &labOptions{cfg: lab.Default()}
	c, e, t := &o.cfg, &o.cfg.Engine, &o.cfg.Timing
	f := newFlags("lab", stderr)
	o.flags = f
	f.StringVar(&o.trace, "trace", "", "`file` of requests in Mooncake's format, plain or zstd")
	f.IntVar(&o.idTokens, "id-tokens", 0, "tokens of an id of the trace; 0 finds out")
	f.StringVar(&o.workload, "workload", "", fmt.Sprintf("instead: generated requests, one of %v", lab.Workloads()))
	f.Float64Var(&o.rate, "rate", 20, "generated requests a second")
	f.IntVar(&c.Requests, "requests", 0, "how many; 0 for all of the trace, or 20,000")
	f.Float64Var(&c.SpeedUp, "speedup", c.SpeedUp, "divides the times of arrival")
	f.StringVar(&o.policies, "policy", labPolicies, "policies, of "+lab.PolicyNames())
	f.IntVar(&c.Workers, "workers", c.Workers, "engines; with --prefill-workers those that decode")
	f.IntVar(&c.PrefillWorkers, "prefill-workers", 0, "engines that only compute prompts")
	f.DurationVar(&c.Transfer, "transfer", c.Transfer, "time that a token of a prompt takes from a prefill worker to its decode worker")
	f.BoolVar(&c.Peers, "peers", false, "workers fetch prefixes from each other, where auto says so")
	f.DurationVar(&c.PullToken, "pull-token", c.PullToken, "time that a worker's link takes to give or take a token of a prefix, one prefix after the other")
	f.IntVar(&e.BlockSize, "block-size", e.BlockSize, "tokens of a block")
	f.IntVar(&e.Blocks, "blocks", e.Blocks, "blocks of an engine's cache")
	f.Func("cache-kinds", "cache groups of the model besides full attention, with commas, each `KIND:SPAN:BLOCK:BLOCKS`: vLLM's name of its kind, tokens of the window, tokens of a block, and how many it keeps (0: as the cache)", func(text string) (err error) {
		e.Groups, err = mock.ParseGroups(strings.Split(text, ","))
		return err
	})
	f.IntVar(&e.HostBlocks, "host-blocks", 0, "blocks of host memory below it, which keeps what the cache evicts; 0 is none")
	f.IntVar(&e.DiskBlocks, "disk-blocks", 0, "blocks of disk below that")
	f.IntVar(&c.PoolBlocks, "pool-blocks", 0, "blocks of a pool that all engines read from and write to; 0 is none")
	f.IntVar(&e.MaxRunning, "max-running", e.MaxRunning, "requests that an engine runs at once")
	f.IntVar(&e.MaxBatched, "max-batched", e.MaxBatched, "tokens that a step computes at most")
	f.Float64Var(&t.PrefillBase, "prefill-base", t.PrefillBase, "ms of a step with prompt tokens")
	f.Float64Var(&t.PrefillToken, "prefill-token", t.PrefillToken, "ms for each of them")
	f.Float64Var(&t.PrefillSquare, "prefill-square", t.PrefillSquare, "ms for each pair of them")
	f.Float64Var(&t.DecodeBase, "decode-base", t.DecodeBase, "ms of a step with decodes")
	f.Float64Var(&t.DecodeToken, "decode-token", t.DecodeToken, "ms for each token that they attend to")
	f.Float64Var(&t.DecodeSquare, "decode-square", t.DecodeSquare, "ms for each pair of them")
	f.Float64Var(&t.LoadHost, "load-ms-per-block", t.LoadHost, "ms to load a block from host memory")
	f.Float64Var(&t.LoadDisk, "disk-load-ms-per-block", t.LoadDisk, "ms to load a block from disk")
	f.Float64Var(&t.LoadShared, "pool-load-ms-per-block", t.LoadShared, "ms to load a block from the pool")
	f.Float64Var(&c.Route.PoolCredit, "pool-credit", c.Route.PoolCredit, "what a block in it is taken to save of a computed one, until loading is learned; 0: routers do not count them")
	f.StringVar(&o.slow, "slow", "", "`worker:factor,…`: workers whose steps take longer by a factor")
	f.StringVar(&o.slows, "slow-at", "", "`worker:time:factor,…`: workers whose steps take longer by a factor from a virtual time on; factor 1 ends it")
	f.DurationVar(&c.Day, "day", 0, "period in which speeds change, each worker's at another phase; 0 for none")
	f.Float64Var(&c.DaySlow, "day-slow", 3, "by how much longer steps take at most then")
	f.StringVar(&o.die, "die", "", "`worker:time,…`: workers that die at a virtual time")
	f.StringVar(&o.joins, "join", "", "`worker:time,…`: workers that join at a virtual time, empty")
	f.IntVar(&c.Routers, "routers", c.Routers, "router replicas")
	f.DurationVar(&c.SyncDelay, "sync-delay", 0, "time until a router knows what another one placed")
	f.DurationVar(&c.EventDelay, "event-delay", 0, "time until the index knows what an engine stored")
	f.Float64Var(&c.EventLoss, "event-loss", 0, "chance that a step's events are lost for ever")
	f.BoolVar(&c.ClosedLoop, "closed-loop", false, "a session sends its next request when the last has ended and it has thought")
	f.DurationVar(&c.Think, "think", 2*time.Second, "for how long in the mean, with --closed-loop")
	f.BoolVar(&o.restart, "restart-sessions", false, "sessions start at other times than in the trace, drawn from the seed")
	f.DurationVar(&c.Targets.FirstToken, "ttft-target", 0, "the most that a first token is to take: rows say what part of the requests is within both targets; 0 for none")
	f.DurationVar(&c.Targets.Token, "itl-target", 0, "the most that each further token is to take, in the mean of an answer")
	f.BoolVar(&c.TellOutput, "tell-output", false, "routers know how long an answer will be")
	f.Float64Var(&c.Route.Temperature, "temperature", 0, "of the policies that have one")
	f.Uint64Var(&c.Seed, "seed", c.Seed, "of all that is left to chance")
	f.IntVar(&o.seeds, "seeds", 1, "run each row with so many seeds, from --seed on: means, with the least and the greatest")
	f.Func("sweep", "`key=a,b,…`: a row for each value of another flag; several give all combinations", func(v string) error {
		o.sweeps = append(o.sweeps, v)
		return nil
	})
	f.StringVar(&o.json, "json", "", "write JSON lines to `file`, - for standard output in place of the table")
	f.StringVar(&o.plot, "plot", "", "write an SVG `file`: reuse against first-token times, where requests' time went, and the workers' load over time in the last runs")
	f.StringVar(&o.html, "html", "", "write an HTML `file` with the same pictures and the table")
	f.StringVar(&o.profile, "cpuprofile", "", "write a CPU profile of the runs to `file`")
	f.BoolVar(&o.quiet, "quiet", false, "no progress line")
	return o, parseFlags(f, args, func() error {
		switch {
		case (o.trace == "") == (o.workload == ""):
			return errors.New("give one of --trace and --workload")
		case o.seeds < 1 || o.seeds > 1000:
			return fmt.Errorf("--seeds is %d, must be 1 … 1000", o.seeds)
		}
		return nil
	})
}

// config turns the flags as they stand into a fleet.
func (o *labOptions) config(policy string) (lab.Config, error) {
	c := o.cfg
	c.Slow, c.Faults = map[int]float64{}, nil
	err := eachPair(o.slow, func(w int, v string) error {
		factor, err := strconv.ParseFloat(v, 64)
		c.Slow[w] = factor
		return err
	})
	for _, f := range [...]struct {
		kind lab.FaultKind
		list string
	}{{lab.Dies, o.die}, {lab.Joins, o.joins}} { // of those at one moment the first strikes first
		err = errors.Join(err, eachPair(f.list, func(w int, v string) error {
			at, err := time.ParseDuration(v)
			c.Faults = append(c.Faults, lab.Fault{At: at, Worker: w, Kind: f.kind})
			return err
		}))
	}
	err = errors.Join(err, eachPair(o.slows, func(w int, v string) error {
		when, factor, _ := strings.Cut(v, ":")
		at, err := time.ParseDuration(when)
		f, ferr := strconv.ParseFloat(factor, 64)
		c.Faults = append(c.Faults, lab.Fault{At: at, Worker: w, Kind: lab.Slows, Factor: f})
		return errors.Join(err, ferr)
	}))
	if err != nil {
		return c, err
	}
	c.Route.Seed = c.Seed
	return c, c.SetPolicy(policy)
}

func eachPair(list string, f func(w int, v string) error) error {
	for item := range strings.SplitSeq(list, ",") {
		if item == "" {
			continue
		}
		number, value, ok := strings.Cut(item, ":")
		w, err := strconv.Atoi(number)
		if err == nil && ok {
			err = f(w, value)
		}
		if err != nil || !ok {
			return fmt.Errorf("%q: give worker:value", item)
		}
	}
	return nil
}

// source opens the requests anew.
func (o *labOptions) source() (trace.Source, func() error, error) {
	if o.workload != "" {
		n := o.cfg.Requests
		if n == 0 {
			n = 20_000
		}
		s, err := lab.Workload(o.workload, n, o.rate, o.cfg.Seed)
		return s, func() error { return nil }, err
	}
	r, err := trace.Open(o.trace, o.idTokens)
	if err != nil {
		return nil, nil, err
	}
	if o.restart {
		s, err := lab.Restart(r, o.cfg.Seed)
		return s, r.Close, err
	}
	return r, r.Close, nil
}

func (o *labOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	var lines []io.Writer
	switch o.json {
	case "":
	case "-":
		lines, stdout = append(lines, stdout), io.Discard
	default:
		f, err := os.Create(o.json)
		if err != nil {
			return fmt.Errorf("write the rows: %w", err)
		}
		defer f.Close() //nolint:errcheck // each write is checked
		lines = append(lines, f)
	}
	table := labTable{w: stdout}
	err := o.each(o.sweeps, map[string]string{}, func(setting map[string]string) error {
		for policy := range strings.SplitSeq(o.policies, ",") {
			row, err := o.overSeeds(ctx, policy, stderr)
			if err != nil {
				return err
			}
			row.Setting = setting
			o.points = append(o.points, lab.Point{
				Policy: policy, Name: nameOf(setting), Reuse: row.Reuse, TTFTP99: row.TTFTP99, At: float64(len(o.points)),
				Spent: [...]float64{lab.Waiting: row.Waiting, lab.Computing: row.Computing, lab.Decoding: row.Decoding, lab.Preempted: row.Preempted},
			})
			o.rows = append(o.rows, row)
			for _, w := range lines {
				if err := json.NewEncoder(w).Encode(row); err != nil {
					return fmt.Errorf("write a row: %w", err)
				}
			}
			table.add(row)
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = toFile(o.plot, func(w io.Writer) error { return lab.Plot(w, o.points, o.panels) })
	return errors.Join(err, toFile(o.html, o.report))
}

// toFile has a file written, if it is named.
func toFile(name string, write func(io.Writer) error) error {
	if name == "" {
		return nil
	}
	f, err := os.Create(name) //nolint:gosec // the user names it
	if err != nil {
		return fmt.Errorf("write a picture: %w", err)
	}
	return errors.Join(write(f), f.Close())
}

// nameOf names a run among those of its policy.
func nameOf(setting map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(setting)) {
		parts = append(parts, k+"="+setting[k])
	}
	return strings.Join(parts, " ")
}

// each calls f for every combination of the sweeps' values, with the flags set.
func (o *labOptions) each(sweeps []string, setting map[string]string, f func(map[string]string) error) error {
	if len(sweeps) == 0 {
		return f(setting)
	}
	key, values, ok := strings.Cut(sweeps[0], "=")
	if !ok || key == "sweep" || o.flags.Lookup(key) == nil {
		return fmt.Errorf("--sweep %q: give flag=a,b,…", sweeps[0])
	}
	for v := range strings.SplitSeq(values, ",") {
		if err := o.flags.Set(key, v); err != nil {
			return fmt.Errorf("--sweep %s: %w", sweeps[0], err)
		}
		next := map[string]string{key: v}
		for k, v := range setting {
			next[k] = v
		}
		if err := o.each(sweeps[1:], next, f); err != nil {
			return err
		}
	}
	return nil
}

// one runs one policy.
func (o *labOptions) one(ctx context.Context, policy string, stderr io.Writer) (row labRow, err error) {
	cfg, err := o.config(policy)
	if err != nil {
		return row, err
	}
	source, done, err := o.source()
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, done()) }()
	start, last := time.Now(), time.Now()
	if !o.quiet {
		cfg.Progress = func(arrived, ended int) {
			if now := time.Now(); now.Sub(last) > 500*time.Millisecond {
				last = now
				fmt.Fprintf(stderr, "\r%s: %d requests, %d under way, %.0f s ", policy, ended, arrived-ended, now.Sub(start).Seconds())
			}
		}
	}
	res, err := lab.Run(ctx, cfg, source)
	if err != nil {
		return row, err
	}
	if !o.quiet {
		fmt.Fprintf(stderr, "\r%s: %d requests in %.1f s            \n", policy, res.Requests, time.Since(start).Seconds())
	}
	s := res.Summary()
	var within *float64
	if cfg.Targets != (route.Targets{}) { // who is refused keeps none
		part := decimals(float64(res.Within)/float64(max(res.Requests+res.Refused, 1)), 4)
		within = &part
	}
	o.panels = append(slices.DeleteFunc(o.panels, func(p lab.Panel) bool { return p.Policy == policy }), lab.Panel{Policy: policy, Load: res.Load})
	return labRow{
		Policy: policy, Workers: cfg.Workers + cfg.PrefillWorkers, SpeedUp: cfg.SpeedUp,
		Requests: res.Requests, Refused: res.Refused, Within: within, Reuse: decimals(s.Reuse, 4), Loaded: decimals(s.Loaded, 4),
		TTFTMean: decimals(s.TTFT.Mean, 2), TTFTP50: decimals(s.TTFT.P50, 2), TTFTP99: decimals(s.TTFT.P99, 2),
		TPOTMean: decimals(s.TPOT.Mean, 3), E2EMean: decimals(s.E2E.Mean, 1), E2EP99: decimals(s.E2E.P99, 1),
		OutputPerSecond: decimals(s.OutputPerSecond, 1), LoadMaxOverMean: decimals(s.LoadMaxOverMean, 3),
		Waiting: decimals(s.Spent[lab.Waiting], 1), Computing: decimals(s.Spent[lab.Computing], 1), Decoding: decimals(s.Spent[lab.Decoding], 1), Preempted: decimals(s.Spent[lab.Preempted], 1),
		SessionMean: decimals(s.Session.Mean, 2), SessionP99: decimals(s.Session.P99, 2),
		Preemptions: float64(res.Preempted), Events: res.Events, Dumps: res.Dumps, Seconds: decimals(res.Duration.Seconds(), 3),
	}, nil
}

func decimals(v float64, digits int) float64 {
	r, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'f', digits, 64), 64)
	return r
}

// labTable prints rows for people.
type labTable struct {
	w    io.Writer
	rows int
}

func (t *labTable) add(r labRow) {
	if t.rows == 0 {
		fmt.Fprintf(t.w, "%-26s %7s %7s %6s %25s %8s %18s %9s %6s\n", "policy", "workers", "speedup", "reuse",
			"ttft mean/p50/p99 ms", "tpot ms", "e2e mean/p99 ms", "tokens/s", "load")
	}
	t.rows++
	fmt.Fprintf(t.w, "%-26s %7d %7g %6.3f %9.1f %7.1f %7.0f %8.2f %8.0f %9.0f %9.0f %6.2f", r.Policy, r.Workers, r.SpeedUp, r.Reuse,
		r.TTFTMean, r.TTFTP50, r.TTFTP99, r.TPOTMean, r.E2EMean, r.E2EP99, r.OutputPerSecond, r.LoadMaxOverMean)
	for _, k := range slices.Sorted(maps.Keys(r.Setting)) {
		if k != "workers" && k != "speedup" {
			fmt.Fprintf(t.w, " %s=%s", k, r.Setting[k])
		}
	}
	if r.Within != nil {
		fmt.Fprintf(t.w, " %.2f %% within targets", 100**r.Within)
	}
	if r.SessionMean > 0 {
		fmt.Fprintf(t.w, " sessions take %.1f s", r.SessionMean)
	}
	fmt.Fprintln(t.w, r.spread())
}
