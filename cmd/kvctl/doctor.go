package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvatlas/kvatlas/internal/doctor"
	"github.com/kvatlas/kvatlas/internal/doctor/probe"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/registry"
)

// probing holds the settings of doctor.
type probing struct {
	answer, listen time.Duration
	tokens, atOnce int
	tokenFile      string
	all            bool
}

func (p *probing) declare(set *conf.Set) {
	set.Duration(&p.answer, "engine-wait", 30*time.Second, "doctor: how long an engine may take for one answer.", conf.Between(100*time.Millisecond, time.Hour))
	set.Duration(&p.listen, "listen", 5*time.Second, "doctor: how long a prompt's events are waited for after its answer.", conf.Between(10*time.Millisecond, time.Hour))
	set.Int(&p.tokens, "probe-tokens", 64, "doctor: tokens of a prompt at least; it has four blocks at least.", conf.Between(1, 1<<16))
	set.Int(&p.atOnce, "at-once", 16, "doctor: workers that are asked at the same time.", conf.Between(1, 1<<10))
	set.String(&p.tokenFile, "engine-token-file", "", "doctor: file with the token that engines are shown.", conf.ShowDefault("no token"))
	set.Bool(&p.all, "all", false, "doctor: print also what is in order, and what was not looked at. The JSON always has all.")
}

// doctor asks every engine, and says what it found.
func (c *config) doctor(ctx context.Context) error {
	token := ""
	if c.probe.tokenFile != "" {
		b, err := os.ReadFile(c.probe.tokenFile)
		if err != nil {
			return fmt.Errorf("--engine-token-file: %w", err)
		}
		token = strings.TrimSpace(string(b))
	}
	opening, cancel := context.WithTimeout(ctx, c.wait)
	defer cancel()
	b, err := c.connect(opening)
	if err != nil {
		return err
	}
	defer b.Close() //nolint:errcheck // nothing was published
	bucket, err := registry.OpenBucket(opening, b.Conn(), c.namespace, registry.BucketConfig{})
	if err != nil {
		return err
	}
	facts, err := probe.Gather(ctx, probe.Config{
		Conn: b.Conn(), Namespace: c.namespace, Seed: rand.Uint64() >> 1, Tokens: c.probe.tokens, Answer: c.probe.answer, Listen: c.probe.listen,
		AtOnce: c.probe.atOnce, Token: func(*registry.Worker) string { return token },
		Read: func(ctx context.Context) ([]registry.Entry, error) {
			ctx, cancel := context.WithTimeout(ctx, c.wait)
			defer cancel()
			all, err := bucket.Read(ctx)
			return slices.DeleteFunc(all.Workers, func(e registry.Entry) bool { return c.model != "" && c.model != e.Model }), err
		},
	})
	switch {
	case err != nil:
		return err
	case len(facts) == 0:
		return fmt.Errorf("nobody is registered in namespace %q: %w", c.namespace, registry.ErrUnknownWorker)
	}
	return c.tell(doctor.Judge(facts), len(facts))
}

// tell prints what was found. The error says that there are faults.
func (c *config) tell(all []doctor.Finding, workers int) error {
	worst := doctor.Worst(all)
	said := error(nil)
	if worst == doctor.Fault {
		said = fmt.Errorf("%w: %w", errSaid, errRefused)
	}
	if c.json {
		if err := c.print(map[string]any{"findings": all, "worst": worst, "workers": workers}); err != nil {
			return err
		}
		return said
	}
	t := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	counts, begun := map[doctor.Level]int{}, false
	for _, f := range all {
		if counts[f.Level]++; !c.probe.all && f.Level != doctor.Warning && f.Level != doctor.Fault {
			continue
		}
		if !begun {
			begun = true
			fmt.Fprintln(t, "WORKER\tMODEL\tCHECK\t\tFOUND\tWHAT TO DO")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", cmp.Or(f.Name, strconv.FormatUint(f.Worker, 10)), f.Model, f.Check, f.Level, f.Found, cmp.Or(f.Do, "-"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c.out, "%d workers: %d faults, %d warnings, %d in order, %d not looked at\n", workers,
		counts[doctor.Fault], counts[doctor.Warning], counts[doctor.OK], counts[doctor.Unknown]); err != nil {
		return err
	}
	return said
}
