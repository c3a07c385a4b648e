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
		// chats: many short ones, after short system prompts.
		"chats": func(c *workload.Config) {
			c.SystemPrompts, c.SystemTokens, c.Agent.Weight, c.OneOff.Weight = 8, 512, 0, 0
			c.Conversation = workload.Session{Weight: 1, Turns: 8, Turn: 64, Answer: 150, Think: 15 * time.Second, Tail: -1}
		},
		// documents: long ones, each asked about by several people and in several turns.
		"documents": func(c *workload.Config) {
			c.SystemPrompts, c.SystemTokens, c.Zipf, c.Agent.Weight, c.OneOff.Weight = 400, 24<<10, 0.8, 0, 0
			c.Conversation = workload.Session{Weight: 1, Turns: 3, Turn: 128, Answer: 300, Think: 20 * time.Second, Tail: -1}
		},
		// branches: one-off questions with retrieved passages after one of many middling prefixes.
		"branches": func(c *workload.Config) {
			c.SystemPrompts, c.SystemTokens, c.Zipf, c.Conversation.Weight, c.Agent.Weight = 3000, 3<<10, 0.9, 0, 0
			c.OneOff = workload.Session{Weight: 1, Context: 2000, Turns: 1, Turn: 100, Answer: 300}
		},
		// reasoning: short prompts with answers of thousands of tokens.
		"reasoning": func(c *workload.Config) {
			c.Agent.Weight, c.OneOff.Weight = 0, 0
			c.Conversation = workload.Session{Weight: 1, Turns: 3, Turn: 200, Answer: 3000, Think: 10 * time.Second, Tail: -1}
		},
		// tenants: two hundred of unequal size, each with its prompt and a mix of all kinds, some of whom come at once.
		"tenants": func(c *workload.Config) {
			c.SystemPrompts, c.SystemTokens, c.Zipf = 200, 4<<10, 1.2
			c.BurstEvery, c.BurstLength, c.BurstFactor = 60*time.Second, 5*time.Second, 6
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
