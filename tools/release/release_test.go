package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

const version = "v0.0.1-test.1"

// made is a directory with a release of a commit.
func made(t *testing.T, head string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "dist")
	r := release{root: "../..", version: version, out: out, head: head,
		targets: strings.Split(cmp.Or(os.Getenv("KVATLAS_RELEASE_TARGETS"), allTargets), ",")}
	if err := r.run(); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestRelease(t *testing.T) {
	if os.Getenv("KVATLAS_TEST_RELEASE") != "1" {
		t.Skip("skipped: make test-release runs it; it builds the programs for every target")
	}
	out := os.Getenv("KVATLAS_RELEASE_DIST") // one that is there
	if out == "" {
		head, err := run("../..", nil, "git", "rev-parse", "HEAD") // which may move meanwhile
		if err != nil {
			t.Fatal(err)
		}
		out = made(t, head)
		t.Run("the same bytes twice", func(t *testing.T) {
			if a, b := read(t, out, "SHA256SUMS"), read(t, made(t, head), "SHA256SUMS"); !bytes.Equal(a, b) {
				t.Errorf("first\n%s\nthen\n%s", a, b)
			}
		})
	}
	t.Run("checksums", func(t *testing.T) {
		for line := range strings.Lines(string(read(t, out, "SHA256SUMS"))) {
			f := strings.Fields(line)
			if sum := sha256.Sum256(read(t, out, f[1])); fmt.Sprintf("%x", sum) != f[0] {
				t.Errorf("%s is not what its checksum says", f[1])
			}
		}
	})
	t.Run("archive", func(t *testing.T) { archive(t, out) })
	t.Run("every archive", func(t *testing.T) { foreign(t, out) })
	t.Run("image", func(t *testing.T) { layout(t, out) })
	t.Run("debian", func(t *testing.T) { debian(t, out) })
	t.Run("rpm", func(t *testing.T) { redhat(t, out) })
	t.Run("sbom", func(t *testing.T) {
		var s struct {
			BOMFormat  string `json:"bomFormat"`
			Components []struct{ Name, Version string }
		}
		if err := json.Unmarshal(read(t, out, "kvatlas_"+version[1:]+".cdx.json"), &s); err != nil || s.BOMFormat != "CycloneDX" || len(s.Components) < 20 {
			t.Errorf("%v, %+v", err, s)
		}
	})
	t.Run("chart", func(t *testing.T) {
		chart := string(untar(t, read(t, out, "kvatlas-chart-"+version[1:]+".tgz"))["kvatlas/Chart.yaml"])
		if !strings.Contains(chart, "\nversion: "+version[1:]+"\n") || !strings.Contains(chart, "\nappVersion: \""+version+"\"\n") {
			t.Error(chart)
		}
	})
}

// archive runs every program of this machine's archive, which has all that it should.
func archive(t *testing.T, out string) {
	dir := "kvatlas_" + version[1:] + "_" + runtime.GOOS + "_" + runtime.GOARCH
	path := filepath.Join(out, dir+".tar.gz")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no archive for this machine: %v", err)
	}
	files := untar(t, read(t, out, dir+".tar.gz"))
	for _, p := range programs {
		says(t, files[dir+"/"+p], p)
		for _, with := range []string{"/man/" + p + ".1", "/completions/" + p + ".bash", "/completions/_" + p, "/completions/" + p + ".fish"} {
			if len(files[dir+with]) == 0 {
				t.Errorf("no %s", with)
			}
		}
	}
	if text := files[dir+"/completions/kvindexer.bash"]; exec.Command("bash", "-n", "-c", string(text)).Run() != nil {
		t.Errorf("no bash: %s", text)
	}
	for _, name := range []string{"LICENSE", "THIRD_PARTY_NOTICES.txt", "CHANGELOG.md"} {
		if len(files[dir+"/"+name]) == 0 {
			t.Errorf("no %s", name)
		}
	}
}

// says runs a program, by an emulator if one is given; it must call itself by the tag.
func says(t *testing.T, program []byte, name string, emulator ...string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, program, 0o700); err != nil {
		t.Fatal(err)
	}
	words := append(emulator, path, "version")
	said, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	if err != nil || !strings.Contains(string(said), version+" (") || strings.Contains(string(said), "dirty") || strings.Contains(string(said), "modified") {
		t.Errorf("%s says %s, %v", name, said, err)
	}
}

// layout follows the image's index to every layer, checking digests and sizes.
func layout(t *testing.T, out string) {
	blob := func(d descriptor) []byte {
		t.Helper()
		data := read(t, out, "image/blobs/"+strings.Replace(d.Digest, ":", "/", 1))
		if fmt.Sprintf("sha256:%x", sha256.Sum256(data)) != d.Digest || len(data) != d.Size {
			t.Errorf("%s is another blob", d.Digest)
		}
		return data
	}
	into := func(data []byte, v any) {
		t.Helper()
		if err := json.Unmarshal(data, v); err != nil {
			t.Fatal(err)
		}
	}
	if got := string(read(t, out, "image/oci-layout")); got != `{"imageLayoutVersion":"1.0.0"}` {
		t.Error(got)
	}
	var top, all struct{ Manifests []descriptor }
	into(read(t, out, "image/index.json"), &top)
	into(blob(top.Manifests[0]), &all)
	if len(all.Manifests) == 0 {
		t.Fatal("no manifests")
	}
	for _, d := range all.Manifests {
		var m struct {
			Config descriptor
			Layers []descriptor
		}
		into(blob(d), &m)
		var c struct {
			Architecture string
			Config       struct {
				User       string
				Entrypoint []string
			}
			Rootfs struct {
				DiffIDs []string `json:"diff_ids"`
			}
		}
		into(blob(m.Config), &c)
		layer := blob(m.Layers[0])
		if c.Architecture != d.Platform.Architecture || c.Config.User != "65532:65532" || c.Config.Entrypoint[0] != "/kvindexer" || len(m.Layers) != 1 ||
			c.Rootfs.DiffIDs[0] != fmt.Sprintf("sha256:%x", sha256.Sum256(unpacked(t, layer))) {
			t.Errorf("%+v %+v", c, m)
		}
		files := untar(t, layer)
		if !bytes.Contains(files["etc/ssl/certs/ca-certificates.crt"], []byte("BEGIN CERTIFICATE")) {
			t.Error("no CA certificates")
		}
		for name := range files {
			if base := filepath.Base(name); base == "sh" || base == "bash" || base == "busybox" {
				t.Errorf("a shell: %s", name)
			}
		}
		if d.Platform.Architecture == runtime.GOARCH && runtime.GOOS == "linux" {
			says(t, files["kvindexer"], "kvindexer")
		}
	}
}

// debian installs the package into a root of its own and removes it again.
func debian(t *testing.T, out string) {
	if _, err := exec.LookPath("dpkg"); err != nil || os.Getuid() != 0 {
		t.Skip("skipped: only root with dpkg can install")
	}
	list, _ := filepath.Glob(filepath.Join(out, "*_"+runtime.GOARCH+".deb")) // the pattern is right
	if len(list) != 1 {
		t.Skipf("%d packages for this machine", len(list))
	}
	root := t.TempDir()
	for _, dir := range []string{"info", "updates", "triggers"} {
		if err := os.MkdirAll(filepath.Join(root, "var/lib/dpkg", dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "var/lib/dpkg/status"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	dpkg := func(args ...string) {
		t.Helper()
		cmd := exec.Command("dpkg", append([]string{"--root=" + root, "--force-script-chrootless", "--log=" + filepath.Join(root, "dpkg.log")}, args...)...)
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, text)
		}
	}
	dpkg("--install", list[0])
	for _, name := range []string{"usr/lib/systemd/system/kvindexer.service", "usr/lib/sysusers.d/kvatlas.conf", "usr/share/man/man1/kvctl.1.gz",
		"usr/share/bash-completion/completions/kvrouter", "usr/share/doc/kvatlas/copyright", "etc/kvatlas"} {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Error(err)
		}
	}
	says(t, read(t, root, "usr/bin/kvctl"), "kvctl")
	dpkg("--purge", "kvatlas")
	for _, name := range []string{"usr/bin/kvindexer", "usr/lib/systemd/system/kvindexer.service", "etc/kvatlas"} {
		if _, err := os.Stat(filepath.Join(root, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
}

func read(t *testing.T, dir, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func unpacked(t *testing.T, data []byte) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func untar(t *testing.T, data []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(unpacked(t, data))); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}
