package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

// module is one that is built into a program.
type module struct{ path, version string }

var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)

// notices adds the licences of all that is built in.
func (r *release) notices() error {
	var b strings.Builder
	b.WriteString("Third-party software in the programs of kvatlas, with its licences.\n")
	dirs, err := run(r.src, []string{"GOFLAGS=-mod=mod"}, "go", "list", "-m", "-f", "{{.Path}} {{.Dir}}", "all")
	if err != nil {
		return err
	}
	at := map[string]string{}
	for line := range strings.Lines(dirs) {
		if f := strings.Fields(line); len(f) == 2 {
			at[f[0]] = f[1]
		}
	}
	root, err := run(r.src, nil, "go", "env", "GOROOT")
	if err != nil {
		return err
	}
	if err := licences(&b, "Go "+runtime.Version(), root); err != nil {
		return err
	}
	for _, m := range r.modules {
		if err := licences(&b, m.path+" "+m.version, at[m.path]); err != nil {
			return err
		}
	}
	r.doc("THIRD_PARTY_NOTICES.txt", b.String())
	return nil
}

func licences(b *strings.Builder, name, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("the licence of %s: %w", name, err)
	}
	found := false
	for _, e := range entries {
		if e.IsDir() || !licenceFile.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		found = true
		fmt.Fprintf(b, "\n%s\n%s: %s\n%s\n\n%s\n", strings.Repeat("=", 78), name, e.Name(), strings.Repeat("=", 78), strings.TrimSpace(string(text)))
	}
	if !found {
		return fmt.Errorf("%s has no licence in %s", name, dir)
	}
	return nil
}

// sbom writes what the programs consist of in CycloneDX's format.
func (r *release) sbom() error {
	type component struct {
		Type    string `json:"type"`
		Ref     string `json:"bom-ref"`
		Name    string `json:"name"`
		Version string `json:"version"`
		PURL    string `json:"purl"`
	}
	of := func(kind, path, version string) component {
		purl := "pkg:golang/" + path + "@" + version
		return component{kind, purl, path, version, purl}
	}
	list := []component{of("library", "std", strings.TrimPrefix(runtime.Version(), "go"))}
	for _, m := range r.modules {
		list = append(list, of("library", m.path, m.version))
	}
	var refs []string
	for _, c := range list {
		refs = append(refs, c.Ref)
	}
	self := of("application", "github.com/kvatlas/kvatlas", r.version)
	data, err := json.MarshalIndent(map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
		"metadata":     map[string]any{"timestamp": r.time.Format("2006-01-02T15:04:05Z"), "component": self},
		"components":   list,
		"dependencies": []any{map[string]any{"ref": self.Ref, "dependsOn": refs}},
	}, "", "  ")
	if err != nil {
		return err
	}
	return r.write("kvatlas_"+r.bare()+".cdx.json", append(data, '\n'))
}
