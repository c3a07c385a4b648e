package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// packages writes a Debian and an RPM package for each Linux target.
func (r *release) packages() error {
	dir := filepath.Join(r.tmp, "package")
	for _, target := range r.targets {
		arch, linux := strings.CutPrefix(target, "linux/")
		if !linux {
			continue
		}
		if arch == "arm" {
			arch = "arm7"
		}
		contents := files.Contents{{Destination: "/etc/kvatlas", Type: files.TypeDir, FileInfo: &files.ContentFileInfo{Mode: 0o755, MTime: r.time}}}
		add := func(from, to string, mode os.FileMode) {
			contents = append(contents, &files.Content{Source: from, Destination: to, FileInfo: &files.ContentFileInfo{Mode: mode, MTime: r.time}})
		}
		for _, p := range programs {
			add(r.program(target, p), "/usr/bin/"+p, 0o755)
		}
		for _, f := range r.docs {
			to, data := place(f.name), f.data
			if strings.HasSuffix(to, ".gz") {
				var err error
				if data, err = packed(data); err != nil {
					return err
				}
			}
			from := filepath.Join(dir, f.name)
			if err := os.MkdirAll(filepath.Dir(from), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(from, data, 0o644); err != nil {
				return err
			}
			add(from, to, 0o644)
		}
		scripts := filepath.Join(r.src, "deploy/packages")
		for _, kind := range []string{"deb", "rpm"} {
			info := nfpm.WithDefaults(&nfpm.Info{
				Name: "kvatlas", Arch: arch, Platform: "linux", Version: r.version, Section: "net", Priority: "optional", MTime: r.time,
				Maintainer: "The kvatlas authors <kvatlas@users.noreply.github.com>", License: "Apache-2.0", Homepage: "https://github.com/kvatlas/kvatlas",
				Description: "knows which inference worker holds the KV cache of which prompt prefix, and routes with it",
				Overridables: nfpm.Overridables{
					Contents: contents, RPM: nfpm.RPM{BuildHost: "kvatlas"},
					Scripts: nfpm.Scripts{PostInstall: filepath.Join(scripts, "postinstall.sh"), PreRemove: filepath.Join(scripts, "preremove.sh"),
						PostRemove: filepath.Join(scripts, "postremove.sh")},
				},
			})
			if err := nfpm.PrepareForPackager(info, kind); err != nil {
				return fmt.Errorf("%s: %w", kind, err)
			}
			p, err := nfpm.Get(kind)
			if err != nil {
				return err
			}
			out, err := os.Create(filepath.Join(r.out, p.ConventionalFileName(info)))
			if err != nil {
				return err
			}
			if err := p.Package(info, out); err != nil {
				return fmt.Errorf("%s: %w", kind, err)
			}
			if err := out.Close(); err != nil {
				return err
			}
		}
	}
	return nil
}

// place is where a package puts a file of the archives.
func place(name string) string {
	base := path.Base(name)
	switch {
	case strings.HasSuffix(name, ".1"):
		return "/usr/share/man/man1/" + base + ".gz"
	case strings.HasSuffix(name, ".bash"):
		return "/usr/share/bash-completion/completions/" + strings.TrimSuffix(base, ".bash")
	case strings.HasSuffix(name, ".fish"):
		return "/usr/share/fish/vendor_completions.d/" + base
	case strings.HasPrefix(name, "completions/_"):
		return "/usr/share/zsh/site-functions/" + base
	case strings.HasSuffix(name, ".sysusers"):
		return "/usr/lib/sysusers.d/kvatlas.conf"
	case strings.HasSuffix(name, ".service"):
		return "/usr/lib/systemd/system/" + base
	case name == "LICENSE":
		return "/usr/share/doc/kvatlas/copyright"
	}
	return "/usr/share/doc/kvatlas/" + base
}
