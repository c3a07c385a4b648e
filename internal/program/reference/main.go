// Command reference writes docs/configuration.md, and the lists of all programs'
// settings that package conf and the Helm chart go by, from what the programs themselves say of
// their settings, and docs/metrics.md from what they expose when they run: `make
// reference` after a change of a flag or a metric.
//
// Invariants:
//   - The text depends on the sources only, not on the machine: a default that
//     does is declared with conf.ShowDefault.
//
// Ownership: nothing is kept; it builds the programs into a directory that it
// removes, and ends those that it starts.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if err := write(context.Background(), "."); err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

// The files that are written, below the module's root.
const (
	docFile     = "docs/configuration.md"
	knownFile   = "internal/program/conf/known.txt"
	metricsFile = "docs/metrics.md"
	chartFile   = "deploy/helm/kvatlas/files/settings.yaml"
)

// write writes all files below root.
func write(ctx context.Context, root string) (err error) {
	dir, err := os.MkdirTemp("", "kvatlas-reference-")
	if err != nil {
		return fmt.Errorf("make a directory for the programs: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := build(ctx, root, dir); err != nil {
		return err
	}
	g, err := generate(ctx, dir)
	if err != nil {
		return err
	}
	for name, text := range g.files {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil { //nolint:gosec // sources are for all to read
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}
