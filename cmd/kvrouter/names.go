package main

import (
	"fmt"
	"strings"
)

// names returns the adapters of --loras with their models, and the aliases with what they
// mean. A name is looked up once, and engines are sent what it means: one that leads to a
// further name would be found by the router and by no engine, or never.
func (c *config) names() (loras, aliases map[string]string, err error) {
	if loras, err = pairs("loras", "adapter=model", c.Loras); err != nil {
		return nil, nil, err
	}
	if aliases, err = pairs("aliases", "alias=name", c.Aliases); err != nil {
		return nil, nil, err
	}
	for name, of := range loras {
		switch {
		case aliases[name] != "":
			return nil, nil, fmt.Errorf("--loras: %q is an alias too; give it in one of both", name)
		case aliases[of] != "" || loras[of] != "":
			return nil, nil, fmt.Errorf("--loras: %s=%s, but %q is an alias or an adapter; name the model itself", name, of, of)
		}
	}
	for name, of := range aliases {
		if aliases[of] != "" {
			return nil, nil, fmt.Errorf("--aliases: %s=%s, but %q is an alias; give what it means itself", name, of, of)
		}
	}
	return loras, aliases, nil
}

// pairs reads a setting of names and what they stand for.
func pairs(setting, form string, list []string) (map[string]string, error) {
	m := make(map[string]string, len(list))
	for _, pair := range list {
		name, of, ok := strings.Cut(pair, "=")
		if !ok || name == "" || of == "" {
			return nil, fmt.Errorf("--%s: %q, give %s", setting, pair, form)
		}
		if m[name] != "" && m[name] != of {
			return nil, fmt.Errorf("--%s: %q means %q and %q; give one", setting, name, m[name], of)
		}
		m[name] = of
	}
	return m, nil
}
