package conf

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFile bounds a settings file; a real one has a few kilobytes.
const maxFile = 1 << 20

// parseFile reads the YAML file: one mapping of setting names to scalars, or
// to sequences of scalars for lists.
func (s *Set) parseFile(path string) ([]assignment, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the settings file: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("reading the settings file: %w", err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("settings file %s is larger than %s", path, FormatBytes(maxFile))
	}
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil // empty, or nothing but comments
	} else if err != nil {
		return nil, fmt.Errorf("settings file %s: %w", path, err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("settings file %s has more than one document, keep one", path)
	}
	found, err := s.parseMapping(path, doc.Content[0])
	if err != nil {
		return nil, fmt.Errorf("settings file %s: %w", path, err)
	}
	return found, nil
}

func (s *Set) parseMapping(path string, root *yaml.Node) ([]assignment, error) {
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: write one \"name: value\" a line", root.Line)
	}
	var found []assignment
	seen := make(map[string]bool)
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, node := root.Content[i], root.Content[i+1]
		name := key.Value
		x := s.byName[name]
		if programs := knowing(s.program, envPrefix+envName(name)); x == nil && len(programs) > 0 {
			s.foreign = append(s.foreign, Foreign{What: "the key " + name + " of " + path, Programs: programs, InFile: true})
			continue
		}
		switch {
		case x == nil:
			return nil, fmt.Errorf("line %d: unknown key %q; the nearest is %q", key.Line, name, s.nearestName(name))
		case name == "config":
			return nil, fmt.Errorf("line %d: a settings file cannot name another", key.Line)
		case seen[name]:
			return nil, fmt.Errorf("line %d: key %q is given twice", key.Line, name)
		}
		seen[name] = true
		value, err := scalar(node, x.Kind == "list")
		if err != nil {
			return nil, fmt.Errorf("line %d: key %q: %w", node.Line, name, x.hide(node.Value, err))
		}
		found = append(found, assignment{x, value, fmt.Sprintf("file %s line %d, %s", path, key.Line, name)})
	}
	return found, nil
}

// scalar returns a YAML value as the text that a flag would have.
func scalar(n *yaml.Node, list bool) (string, error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		return "", errors.New("no value; remove the line or give one (\"\" is the empty text)")
	case n.Kind == yaml.ScalarNode:
		return n.Value, nil
	case n.Kind == yaml.SequenceNode && list:
		var items []string
		for _, c := range n.Content {
			item, err := scalar(c, false)
			if err != nil {
				return "", err
			}
			if strings.Contains(item, ",") {
				return "", errors.New("an item has a comma, which separates items")
			}
			items = append(items, item)
		}
		return strings.Join(items, ","), nil
	}
	return "", errors.New("not a single value")
}
