package console

import (
	"context"
	"log/slog"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/replica"
	"github.com/kvatlas/kvatlas/route/account"
)

// Settings are a program's.
type Settings struct {
	On      bool
	Readers int
}

// Declare adds the settings to the set.
func (c *Settings) Declare(set *conf.Set) {
	set.Group("Console")
	set.Bool(&c.On, "console", true, `Serve the console, a page that shows the fleet: at / of the admin port, and for whoever has the role reader at
		/console/ of the other.`)
	set.Int(&c.Readers, "console-readers", defaultReaders, `Most pages that may follow the console's events at once; more are refused, and a tenant gets no more than it leaves to
		others. While there are none, nothing is gathered for them.`, conf.Between(1, 1<<16))
}

const defaultReaders = 64

// Config is what a Console shows. Program and Replica are needed.
type Config struct {
	Settings
	Program string
	Replica *replica.Replica
	// Models returns the models that are routed; nil: none are.
	Models func() []*fleet.Model
	// Decisions are the choices that are kept; nil: none.
	Decisions *account.Log
	// Health is the process's; nil: that of the replica.
	Health *edge.Health
	// Lookups counts answered lookups; nil: nobody does.
	Lookups func() uint64
	// Prompts are the last ones that were sampled; nil: none are kept.
	Prompts *account.Prompts
	// Explain says what each worker has of a prompt, and why not more, as POST /v1/explain
	// does; nil: nobody can.
	Explain func(tenant *string, body []byte) ([]byte, *edge.Problem)
	// Tokens makes tokens of a text; nil: nobody can.
	Tokens func(ctx context.Context, sp event.Space, text string) ([]uint32, error)
	// Declared are the program's settings; nil: it has none.
	Declared *conf.Set
	Metrics  *obs.Metrics // nil: nothing is counted
	Log      *slog.Logger

	started time.Time
}
