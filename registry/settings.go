package registry

import (
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/conf"
)

// Settings are the settings of a Registry as programs declare them.
type Settings struct {
	Beat    time.Duration
	Forget  time.Duration
	Workers string // file
	Allow   []string
}

// Declare adds the settings to the set.
func (s *Settings) Declare(set *conf.Set) {
	set.Group("Registry")
	set.Duration(&s.Beat, "registry-beat", 2*time.Second, `How often this replica writes to the registry to know that it hears
		everything. Leases of workers are judged that often.`, conf.Between(50*time.Millisecond, time.Minute))
	set.Duration(&s.Forget, "registry-forget", DefaultForget, `How long a worker that left is remembered. Give more than the
		streams keep events, so that a replica that starts does not take up what such a worker published.`,
		conf.Between(time.Minute, 30*24*time.Hour))
	set.String(&s.Workers, "registry-workers", "", `YAML or JSON file with workers that are registered for as long as they are
		in it: a sequence of mappings with worker_id (a number or a name), model, block_size, transport and, where they apply, group,
		dp_ranks, endpoints and the other fields of a registration. Read again when it changes; a damaged one changes nothing.`)
	set.List(&s.Allow, "registry-allow", nil, `Endpoints that may be registered over HTTP: addresses, networks (10.0.0.0/8)
		and host names (*.engines.example), each with or without :port, and ipc:///path. Without any, those of this machine
		only.`)
	set.Check(func() error { return s.Apply(new(Config)) })
}

// Apply brings the settings into cfg and checks the file they name.
func (s *Settings) Apply(cfg *Config) error {
	cfg.Beat, cfg.Forget = s.Beat, s.Forget
	var err error
	if cfg.Allow, err = ParseAllow(s.Allow); err != nil {
		return fmt.Errorf("--registry-allow: %w", err)
	}
	if cfg.File = s.Workers; cfg.File == "" {
		return nil
	}
	if _, err := ReadStatic(cfg.File); err != nil {
		return fmt.Errorf("--registry-workers: %s: %w", cfg.File, err)
	}
	return nil
}
