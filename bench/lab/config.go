package lab

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/route"
)

// Config describes a fleet and what happens to it. Start from Default.
type Config struct {
	// Workers are the engines. With PrefillWorkers, they only decode, and so
	// many more only compute prompts.
	Workers, PrefillWorkers int
	// Engine is what each engine is made with; its BlockSize is the index's.
	Engine mock.Config
	Timing mock.Timing
	// PoolBlocks is how many blocks a pool has that all engines read from and write to; 0: there
	// is none.
	PoolBlocks int
	// Slow multiplies the time of every step of a worker, by its number.
	Slow map[int]float64
	// Day is the period in which speeds change, each worker's at another phase: its steps take
	// between once and DaySlow times as long. 0 for none.
	Day     time.Duration
	DaySlow float64
	// Transfer is how long a computed prompt is on its way from a prefill
	// worker to its decode worker, for each of its tokens.
	Transfer time.Duration
	// Peers lets workers fetch prefixes from each other, where auto says so. A worker's link
	// gives or takes one prefix after the other, a token in PullToken.
	Peers     bool
	PullToken time.Duration

	Route    route.Settings
	Queue    Queue                   // of each router
	bound    Order                   // not a fleet but what bounds it, in this order
	policy   func(*sim) route.Policy // in place of that of Route.Mode, if not nil; see SetPolicy
	sessions bool                    // routers are told where a session's last request went
	Routers  int                     // replicas, among which requests take turns
	// SyncDelay is how long what one router placed is on its way to another.
	SyncDelay time.Duration
	// EventDelay is how long an engine's events are on their way to the index.
	EventDelay time.Duration
	// EventLoss is the chance of the events of a step to be lost for ever, as
	// where nothing recovers them.
	EventLoss float64

	// ClosedLoop lets only the first request of a session arrive when the source says, and
	// each further one when the last has ended and the session has thought, for Think in the
	// mean, exponentially distributed. All of the source is read before the run.
	ClosedLoop bool
	Think      time.Duration
	// SpeedUp divides the times of arrival.
	SpeedUp float64
	// Requests ends the source after so many; 0 for all.
	Requests int
	// Faults happen to workers, in any order.
	Faults []Fault
	// Seed is of what is left to chance. The routers have one of their own.
	Seed uint64
	// Targets are what each request's times are held against in the result. Routers go by them only
	// if they are told: see Route.Targets.
	Targets route.Targets
	// TellOutput lets routers expect the length that a request will generate.
	TellOutput bool
	// Progress, if not nil, is told now and then how many requests have come
	// and how many have ended.
	Progress func(arrived, ended int)
}

// Fault is something that happens to a worker.
type Fault struct {
	At     time.Duration // virtual time
	Worker int
	Kind   FaultKind
	Factor float64 // of Slows: by how much longer its steps take from then on
}

// FaultKind says what happens.
type FaultKind uint8

const (
	// Dies means that the worker is gone, with its cache. Its requests are sent to others
	// and begin again; a first token that was out counts.
	Dies FaultKind = iota + 1
	// Joins means that the worker is there from now on, empty, and was not
	// before.
	Joins
	// Slows means that its steps take longer by a factor, or as long as ever again.
	Slows
)

// Default returns the fleet that Dynamo's replay simulator has by default: its
// engines' limits and times, of 8 workers, with one router and nothing lost or
// late.
func Default() Config {
	return Config{
		Workers: 8,
		Engine:  mock.Config{BlockSize: 64, Blocks: 16384, MaxRunning: 256, MaxBatched: 8192, MaxWaiting: 1 << 24},
		Timing:  mock.DefaultTiming(),
		Route:   route.DefaultSettings(),
		Routers: 1,
		SpeedUp: 1,
		Seed:    1,
		// What a prompt of a 70B model takes at 50 GB/s: 0.3 MB a token.
		Transfer:  6 * time.Microsecond,
		PullToken: 6 * time.Microsecond,
	}
}

const maxWorkers = 1 << 12

func (c *Config) check() error {
	bad := func(name string, v any, want string) error {
		return fmt.Errorf("lab: %s is %v, must be %s", name, v, want)
	}
	switch {
	case c.Workers < 1 || c.Workers > maxWorkers:
		return bad("Workers", c.Workers, fmt.Sprintf("1 … %d", maxWorkers))
	case c.PrefillWorkers < 0 || c.PrefillWorkers > maxWorkers:
		return bad("PrefillWorkers", c.PrefillWorkers, fmt.Sprintf("0 … %d", maxWorkers))
	case c.Routers < 1 || c.Routers > 256:
		return bad("Routers", c.Routers, "1 … 256")
	case !(c.SpeedUp > 0) || math.IsInf(c.SpeedUp, 1):
		return bad("SpeedUp", c.SpeedUp, "a number above 0")
	case !(c.EventLoss >= 0 && c.EventLoss <= 1):
		return bad("EventLoss", c.EventLoss, "0 … 1")
	case c.EventDelay < 0 || c.SyncDelay < 0 || c.Transfer < 0 || c.PullToken < 0 || c.Think < 0:
		return bad("a delay", min(c.EventDelay, c.SyncDelay, c.Transfer, c.PullToken, c.Think), "0 or more")
	case c.Peers && c.PrefillWorkers > 0:
		return bad("Peers", c.Peers, "without PrefillWorkers: who fetches there is not modelled")
	case c.sessions && c.PrefillWorkers > 0:
		return errors.New("lab: +sessions must be without PrefillWorkers: pairs are chosen without sessions here")
	case c.Day < 0 || c.Day > 0 && (!(c.DaySlow >= 1) || math.IsInf(c.DaySlow, 1)):
		return bad("DaySlow", c.DaySlow, "1 or more, with a Day")
	case c.Targets.Check() != nil:
		return bad("Targets", c.Targets, "times from 0 on")
	case c.Requests < 0:
		return bad("Requests", c.Requests, "0 or more")
	}
	dies := func(f Fault) bool { return f.Kind != Slows }
	if slices.ContainsFunc(c.Faults, dies) && c.PrefillWorkers > 0 {
		return bad("Faults", c.Faults, "none with PrefillWorkers: what becomes of a prompt on its way is not modelled")
	}
	for w, f := range c.Slow {
		if w < 0 || w >= c.Workers+c.PrefillWorkers || !(f > 0) || math.IsInf(f, 1) {
			return bad("Slow", c.Slow, "factors above 0 of workers that there are")
		}
	}
	for _, f := range c.Faults {
		if f.Worker < 0 || f.Worker >= c.Workers+c.PrefillWorkers || f.At < 0 || f.Kind < Dies || f.Kind > Slows || f.Kind == Slows && (!(f.Factor > 0) || math.IsInf(f.Factor, 1)) {
			return bad("a fault", f, "of a worker that there is")
		}
	}
	return blockhash.CheckBlockSize(c.Engine.BlockSize)
}
