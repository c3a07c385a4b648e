package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/route"
)

// aims puts what --objective, --ttft-target and --itl-target say of all models and of each
// into the settings of choices.
func (c *config) aims() error {
	r := &c.Route
	r.Models = nil
	of := func(model string, change func(*route.Aims)) {
		if r.Models == nil {
			r.Models = make(map[string]route.Aims)
		}
		a := r.Models[model]
		change(&a)
		r.Models[model] = a
	}
	all, each, err := perModel("objective", c.Objectives)
	if err != nil {
		return err
	}
	r.Objective = all
	for _, model := range slices.Sorted(maps.Keys(each)) {
		of(model, func(a *route.Aims) { a.Objective = each[model] })
	}
	for _, t := range []struct {
		name string
		list []string
		to   *time.Duration
		own  func(*route.Aims) **time.Duration
	}{
		{"ttft-target", c.FirstTargets, &r.Targets.FirstToken, func(a *route.Aims) **time.Duration { return &a.FirstToken }},
		{"itl-target", c.TokenTargets, &r.Targets.Token, func(a *route.Aims) **time.Duration { return &a.Token }},
	} {
		all, each, err := perModel(t.name, t.list)
		if err != nil {
			return err
		}
		*t.to = 0
		if all != "" {
			if *t.to, err = target(t.name, all); err != nil {
				return err
			}
		}
		for _, model := range slices.Sorted(maps.Keys(each)) {
			d, err := target(t.name, each[model])
			if err != nil {
				return err
			}
			of(model, func(a *route.Aims) { *t.own(a) = &d })
		}
	}
	return nil
}

// perModel reads a setting of which each model may have its own: value, or model=value.
func perModel(setting string, list []string) (all string, each map[string]string, err error) {
	var named []string
	for _, item := range list {
		switch {
		case strings.Contains(item, "="):
			named = append(named, item)
		case all != "" && all != item:
			return "", nil, fmt.Errorf("--%s: %q and %q are both for all models; give one", setting, all, item)
		default:
			all = item
		}
	}
	each, err = pairs(setting, "value or model=value", named)
	return all, each, err
}

func target(setting, text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("--%s: %q, give a time such as 500ms, or 0 for none", setting, text)
	}
	return d, nil
}
