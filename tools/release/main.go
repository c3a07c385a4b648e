// Command release makes of the repository's commit what a release consists of:
// archives, Debian and RPM packages, an image directory, the chart, an SBOM and
// checksums, the same bytes each time.
//
// Invariants:
//   - It builds a clone of HEAD that has the tag, so that what a program says of
//     itself is the tag and never a changed tree, and no path of this machine is in it.
//   - Times are the commit's, owners are root, names are sorted; what is not of the
//     repository (CA certificates, licences, nfpm) is pinned by a go.sum.
//
// Ownership: it owns its temporary directory and what it writes into -out.
package main

import (
	"cmp"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// programs are those of a release.
var programs = []string{"kvctl", "kvpods", "kvindexer", "kvmocker", "kvpublisher", "kvrouter"}

const allTargets = "linux/amd64,linux/arm64,linux/386,linux/arm,darwin/amd64,darwin/arm64,windows/amd64,windows/arm64"

func main() {
	log.SetFlags(0)
	log.SetPrefix("release: ")
	r := release{}
	flag.StringVar(&r.root, "root", ".", "checkout of the repository")
	flag.StringVar(&r.version, "version", "", "tag of the release, vX.Y.Z")
	flag.StringVar(&r.out, "out", "dist", "directory to write to; it must not exist yet")
	targets := flag.String("targets", allTargets, "what to build for, as os/arch,…")
	flag.Parse()
	r.targets = strings.Split(*targets, ",")
	if err := r.run(); err != nil {
		log.Fatal(err)
	}
}

// release is one run.
type release struct {
	root, version, out string
	targets            []string
	head               string // the commit; "" is HEAD

	tmp, src string
	time     time.Time // of the commit
	modules  []module
	docs     []file // completions, man pages, licences
}

// bare is the version without its v, as packages have it.
func (r *release) bare() string { return strings.TrimPrefix(r.version, "v") }

var tag = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

func (r *release) run() (err error) {
	if !tag.MatchString(r.version) {
		return fmt.Errorf("%q is no version: give vX.Y.Z", r.version)
	}
	if err := os.Mkdir(r.out, 0o755); err != nil {
		return fmt.Errorf("the output directory: %w", err)
	}
	if r.tmp, err = os.MkdirTemp("", "kvatlas-release-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.tmp)
	r.src = filepath.Join(r.tmp, "src")
	if err := r.clone(); err != nil {
		return err
	}
	for _, step := range []func() error{r.build, r.describe, r.archives, r.packages, r.chart, r.image, r.checksums} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// clone makes r.src a clone of HEAD with the tag.
func (r *release) clone() error {
	if _, err := run(r.root, nil, "git", "clone", "-q", "--no-hardlinks", "--no-checkout", ".", r.src); err != nil {
		return err
	}
	head, err := run(r.root, nil, "git", "rev-parse", cmp.Or(r.head, "HEAD"))
	if err != nil {
		return err
	}
	if _, err := run(r.src, nil, "git", "checkout", "-q", "--detach", head); err != nil {
		return err
	}
	at, err := run(r.src, nil, "git", "rev-parse", "-q", "--verify", "refs/tags/"+r.version+"^{commit}")
	switch {
	case err != nil: // no such tag yet
		if _, err := run(r.src, nil, "git", "tag", r.version); err != nil {
			return err
		}
	case at != head:
		return fmt.Errorf("%s is the tag of %s, and HEAD is %s: check out the tag", r.version, at, head)
	}
	seconds, err := run(r.src, nil, "git", "log", "-1", "--format=%ct")
	if err != nil {
		return err
	}
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return fmt.Errorf("the time of the commit: %w", err)
	}
	r.time = time.Unix(n, 0).UTC()
	return nil
}

// build builds every program for every target and for this machine, and checks what
// each says of itself.
func (r *release) build() error {
	native := runtime.GOOS + "/" + runtime.GOARCH
	targets := r.targets
	if !slices.Contains(targets, native) {
		targets = append(slices.Clone(targets), native)
	}
	for _, target := range targets {
		system, arch, ok := strings.Cut(target, "/")
		if !ok {
			return fmt.Errorf("%q is no target: give os/arch", target)
		}
		log.Printf("%s %s", r.version, target)
		args := []string{"build", "-trimpath", "-buildvcs=true", "-ldflags=-s -w", "-o", r.bin(target) + "/"}
		for _, p := range programs {
			args = append(args, "./cmd/"+p)
		}
		env := []string{"GOOS=" + system, "GOARCH=" + arch, "CGO_ENABLED=0", "GOFLAGS=", "GOAMD64=v1", "GO386=sse2", "GOARM=7", "GOARM64=v8.0"}
		if _, err := run(r.src, env, "go", args...); err != nil {
			return err
		}
		for _, p := range programs {
			info, err := buildinfo.ReadFile(r.program(target, p))
			if err != nil {
				return err
			}
			if info.Main.Version != r.version {
				return fmt.Errorf("%s for %s calls itself %s", p, target, info.Main.Version)
			}
			for _, dep := range info.Deps {
				r.modules = append(r.modules, module{dep.Path, dep.Version})
			}
		}
	}
	return nil
}

// bin is the directory of a target's programs.
func (r *release) bin(target string) string {
	return filepath.Join(r.tmp, "bin", strings.ReplaceAll(target, "/", "_"))
}

func (r *release) program(target, name string) string {
	if strings.HasPrefix(target, "windows/") {
		name += ".exe"
	}
	return filepath.Join(r.bin(target), name)
}

// run runs a command and returns what it prints, without spaces around it.
func run(dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}
