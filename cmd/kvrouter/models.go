package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/route"
)

// aims puts what --objective, --ttft-target and --itl-target say of all models and of each
// into the settings of choices.
func (c *config) aims() error {
	models := make(map[string]route.Aims)
	for _, s := range []struct {
		name string
		list []string
		set  func(a *route.Aims, text string) error
	}{
		{"objective", c.Objectives, func(a *route.Aims, text string) error { a.Objective = text; return nil }},
		{"ttft-target", c.FirstTargets, func(a *route.Aims, text string) (err error) { a.FirstToken, err = target(text); return err }},
		{"itl-target", c.TokenTargets, func(a *route.Aims, text string) (err error) { a.Token, err = target(text); return err }},
	} {
		each, err := perModel(s.name, s.list)
		if err != nil {
			return err
		}
		for model, text := range each {
			a := models[model]
			if err := s.set(&a, text); err != nil {
				return fmt.Errorf("--%s: %w", s.name, err)
			}
			models[model] = a
		}
	}
	r := &c.Route
	r.Objective, r.Targets, r.Models = "", route.Targets{}, models
	*r = r.Of(all)
	delete(models, all)
	r.Models = models
	return nil
}

// all is the name of no model.
const all = ""

// perModel reads a setting of which each model may have its own: value, or model=value.
func perModel(setting string, list []string) (map[string]string, error) {
	var every string
	var named []string
	for _, item := range list {
		switch {
		case strings.Contains(item, "="):
			named = append(named, item)
		case every != "" && every != item:
			return nil, fmt.Errorf("--%s: %q and %q are both for all models; give one", setting, every, item)
		default:
			every = item
		}
	}
	each, err := pairs(setting, "value or model=value", named)
	if err == nil && every != "" {
		each[all] = every
	}
	return each, err
}

func target(text string) (*time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return nil, fmt.Errorf("%q, give a time such as 500ms, or 0 for none", text)
	}
	return &d, nil
}
