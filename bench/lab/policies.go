package lab

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/route"
)

// SetPolicy makes requests be placed as the name says: a mode of package route,
// "dynamo-scale-N", "kv-weight-N", or another project's policy ("smg", "llm-d",
// "llm-d-lmetric"), each with what follows it:
//
//	bound-fcfs, bound-wspt      one pooled cache and one queue; see bound
//	+wspt-T, +fcfs-T, +lcfs-T   held at the router in this order; see Queue
//	+unheld                     of auto: not held at the router as kvrouter's --queue does
//	+peers                      of auto: workers fetch prefixes from each other; see Peers
//	+undoubted                  of auto: whatever engines report, the index is believed
//	+ttft, +balanced, +e2e      the objective of auto
//	+sessions                   requests of a session are known to be, without prefill workers: see route.Options.Session
//	+targets                    of auto: it goes by Targets
//	+temperature-N              of the policies that have one
//	+credit-N, +decay-N, +requests-N   of dynamo; see dynamoOptions
func (c *Config) SetPolicy(name string) error {
	parts := strings.Split(name, "+")
	c.policy, c.bound, c.Queue, c.Route.Mode, c.Route.Objective = nil, Unheld, Queue{}, parts[0], ""
	c.Route.Targets, c.sessions = route.Targets{}, false
	auto := parts[0] == route.DefaultSettings().Mode
	c.Route.Doubt = auto // others' routers have no such thing
	bad := func(err error) error { return fmt.Errorf("policy %q: %w", name, err) }
	scaled := func(prefix, mode string, to *float64) (err error) {
		if n, ok := strings.CutPrefix(parts[0], prefix); ok {
			c.Route.Mode = mode
			*to, err = strconv.ParseFloat(n, 64)
		}
		return err
	}
	if err := scaled("dynamo-scale-", "dynamo", &c.Route.PrefillLoadScale); err != nil {
		return bad(err)
	}
	if err := scaled("kv-weight-", "kv", &c.Route.OverlapWeight); err != nil {
		return bad(err)
	}
	if auto {
		c.Queue = Queue{Order: Late}
	}
	if rival, ok := rivals()[parts[0]]; ok {
		c.policy, c.Route.Mode = rival, route.DefaultSettings().Mode
	}
	switch name {
	case "bound-fcfs":
		c.bound = FirstCome
		return nil
	case "bound-wspt":
		c.bound = Shortest
		return nil
	}
	options := dynamoOptions{credit: 1}
	for _, option := range parts[1:] {
		if slices.Contains(route.Objectives(), option) {
			c.Route.Objective = option
			continue
		}
		switch option {
		case "unheld":
			c.Queue = Queue{}
			continue
		case "sessions":
			c.sessions = true
			continue
		case "targets":
			if !auto {
				return bad(errors.New("targets is an option of auto"))
			}
			c.Route.Targets = c.Targets
			continue
		case "peers":
			if !auto {
				return bad(errors.New("peers is an option of auto"))
			}
			c.Peers = true
			continue
		case "undoubted":
			c.Route.Doubt = false
			continue
		}
		key, number, _ := strings.Cut(option, "-")
		v, err := strconv.ParseFloat(number, 64)
		if err != nil || !(v >= 0) {
			return bad(fmt.Errorf("%q: give option-number, a number from 0 on", option))
		}
		switch key {
		case "fcfs", "lcfs", "wspt":
			c.Queue = Queue{Order: map[string]Order{"fcfs": FirstCome, "lcfs": LastCome, "wspt": Shortest}[key], Threshold: v}
		case "temperature":
			c.Route.Temperature = v
		case "credit":
			options.credit = v
		case "decay":
			options.decay = v
		case "requests":
			options.requests = v
		default:
			return bad(fmt.Errorf("no option %q", key))
		}
	}
	if options != (dynamoOptions{credit: 1}) {
		if c.Route.Mode != "dynamo" {
			return bad(fmt.Errorf("credit, decay and requests are options of dynamo"))
		}
		c.policy = func(*sim) route.Policy { return options }
	}
	return nil
}

// PolicyNames says what SetPolicy takes, for people.
func PolicyNames() string {
	return strings.Join(route.Modes(), ", ") + ", dynamo-scale-N, kv-weight-N, smg, llm-d, llm-d-lmetric, and the bounds bound-fcfs and bound-wspt; " +
		"each may have +fcfs-T, +lcfs-T or +wspt-T (held at the router while all workers have more prompt tokens to compute than T steps take) and +temperature-N, " +
		"+sessions (those of the trace are known), auto, which is held as kvrouter's --queue does, also +unheld, +targets, +peers (workers fetch prefixes from each other) and +ttft, +balanced and +e2e (its objective), dynamo also +credit-N, +decay-N and +requests-N"
}
