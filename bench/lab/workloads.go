package lab

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/bench/trace"
	"github.com/kvatlas/kvatlas/bench/workload"
)

// workloads are the generated ones, by name: what differs from a general mix of
// conversations, agents and one-off prompts without bursts.
func workloads() map[string]func(*workload.Config) {
	return map[string]func(*workload.Config){
		// uniform: system prompts of like popularity, steady arrivals.
		"uniform": func(c *workload.Config) { c.Zipf, c.SystemPrompts, c.SystemTokens = 0, 64, 2048 },
		// zipf: one-off prompts after long prefixes of unequal popularity, more
		// of them than one cache holds.
		"zipf": func(c *workload.Config) {
			c.Zipf, c.SystemPrompts, c.SystemTokens = 1, 1000, 8192
			c.Conversation.Weight, c.Agent.Weight = 0, 0
		},
		// bursts: the mix, with ten times the arrivals for 3 s of each 30.
		"bursts": func(c *workload.Config) {
			c.BurstEvery, c.BurstLength, c.BurstFactor = 30*time.Second, 3*time.Second, 10
		},
		// giant: one system prompt of 32,768 tokens before every request.
		"giant": func(c *workload.Config) { c.SystemPrompts, c.SystemTokens = 1, 32768 },
		// unshared: no two requests share anything.
		"unshared": func(c *workload.Config) {
			c.SystemPrompts, c.Conversation.Weight, c.Agent.Weight = 0, 0, 0
			c.OneOff.Context = 4000
		},
	}
}

// Workloads returns the names of the generated workloads, sorted.
func Workloads() []string { return slices.Sorted(maps.Keys(workloads())) }

// Workload makes the named one: so many requests, so many a second, drawn from
// the seed.
func Workload(name string, requests int, rate float64, seed uint64) (trace.Source, error) {
	change, ok := workloads()[name]
	if !ok {
		return nil, fmt.Errorf("lab: no workload %q, give one of %v", name, Workloads())
	}
	c := workload.Default()
	c.IDTokens, c.Requests, c.Rate, c.Seed, c.BurstEvery = 64, requests, rate, seed, 0
	c.BurstLength = 0
	change(&c)
	g, err := workload.New(c)
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	return g, nil
}
