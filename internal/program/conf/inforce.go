package conf

import "cmp"

// InForce is a setting as it is in force, as it may be shown.
type InForce struct {
	Name    string `json:"name"`
	Group   string `json:"group"`
	Kind    string `json:"kind"`
	Value   string `json:"value"` // without credentials
	Default string `json:"default"`
	Source  string `json:"source"` // as Source says
	Masked  bool   `json:"masked"` // the value has credentials, which are not shown
	Help    string `json:"help"`
}

// InForce returns the settings as they are in force, in the order of their declaration.
func (s *Set) InForce() []InForce {
	list := make([]InForce, 0, len(s.settings))
	for _, x := range s.settings {
		value := x.text()
		shown := x.shown(value)
		list = append(list, InForce{x.Name, x.Group, x.Kind, shown, x.shown(cmp.Or(x.shownDefault, x.Default)), x.source, shown != value, x.Help})
	}
	return list
}
