package main

import (
	"archive/zip"
	"bytes"
	"debug/buildinfo"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// emulators run programs of Linux for other processors, from Debian's qemu-user-static.
var emulators = map[string]string{"arm": "qemu-arm-static", "arm64": "qemu-aarch64-static", "386": "qemu-i386-static", "amd64": "qemu-x86_64-static"}

// foreign has every program of every archive say its version, where it can be run here, and
// else looks up what it would say: that is from the build information.
func foreign(t *testing.T, out string) {
	list, err := filepath.Glob(filepath.Join(out, "kvatlas_*_*_*.*"))
	if err != nil {
		t.Fatal(err)
	}
	ran, looked := 0, 0
	for _, path := range list {
		base := filepath.Base(path)
		name, isTar := strings.CutSuffix(base, ".tar.gz")
		name, isZip := strings.CutSuffix(name, ".zip")
		target, ok := strings.CutPrefix(name, "kvatlas_"+version[1:]+"_")
		if !ok || !isTar && !isZip {
			continue // a package
		}
		system, arch, _ := strings.Cut(target, "_")
		data := read(t, out, base)
		files := map[string][]byte{}
		if isZip {
			files = unzip(t, data)
		} else {
			files = untar(t, data)
		}
		for _, p := range programs {
			file := name + "/" + p
			if system == "windows" {
				file += ".exe"
			}
			program := files[file]
			switch emulator, err := exec.LookPath(emulators[arch]); {
			case system == runtime.GOOS && (arch == runtime.GOARCH || arch == "386" && runtime.GOARCH == "amd64"):
				says(t, program, p)
				ran++
			case system == "linux" && runtime.GOOS == "linux" && err == nil:
				says(t, program, p, emulator)
				ran++
			default:
				info, err := buildinfo.Read(bytes.NewReader(program))
				if err != nil {
					t.Fatalf("%s of %s: %v", p, target, err)
				}
				for _, s := range info.Settings {
					if s.Key == "vcs.modified" && s.Value != "false" {
						t.Errorf("%s of %s is of a changed tree", p, target)
					}
				}
				if info.Main.Version != version {
					t.Errorf("%s of %s is %s", p, target, info.Main.Version)
				}
				looked++
			}
		}
	}
	t.Logf("%d programs ran, %d were looked into", ran, looked)
	if ran+looked == 0 {
		t.Error("there is no archive")
	}
}

func unzip(t *testing.T, data []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	r, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.File {
		in, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		if files[f.Name], err = io.ReadAll(in); err != nil {
			t.Fatal(err)
		}
		_ = in.Close() // it was read
	}
	return files
}

// redhat installs the package into a root of its own, with a shell for its scripts, has rpm
// compare what is there with what it brought, and removes it again.
func redhat(t *testing.T, out string) {
	if _, err := exec.LookPath("rpm"); err != nil || os.Getuid() != 0 {
		t.Skip("skipped: only root with rpm can install")
	}
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	list, _ := filepath.Glob(filepath.Join(out, "*."+arch+".rpm")) // the pattern is right
	if len(list) != 1 {
		t.Skipf("%d packages for this machine", len(list))
	}
	root := t.TempDir()
	shell(t, root)
	rpm := func(args ...string) string {
		t.Helper()
		text, err := exec.Command("rpm", append([]string{"--root=" + root, "--dbpath=/var/lib/rpm"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, text)
		}
		return string(text)
	}
	rpm("--initdb")
	rpm("--install", "--nodeps", list[0])
	if text := rpm("--query", "kvatlas"); !strings.HasPrefix(text, "kvatlas-"+strings.ReplaceAll(version[1:], "-", "~")) {
		t.Error(text)
	}
	if text := rpm("--verify", "--nodeps", "kvatlas"); text != "" {
		t.Errorf("rpm finds changed:\n%s", text)
	}
	says(t, read(t, root, "usr/bin/kvctl"), "kvctl")
	rpm("--erase", "kvatlas")
	for _, name := range []string{"usr/bin", "usr/lib/systemd/system", "usr/share/man/man1", "etc/kvatlas"} {
		if left, _ := filepath.Glob(filepath.Join(root, name, "kv*")); len(left) > 0 { // likewise
			t.Errorf("%v are left", left)
		}
	}
}

// shell copies this machine's /bin/sh, with its libraries, into a root.
func shell(t *testing.T, root string) {
	t.Helper()
	libraries, err := exec.Command("ldd", "/bin/sh").Output()
	if err != nil {
		t.Skipf("skipped: the libraries of /bin/sh are not known: %v", err)
	}
	for word := range strings.FieldsSeq("/bin/sh " + string(libraries)) {
		if !strings.HasPrefix(word, "/") {
			continue
		}
		data, err := os.ReadFile(word)
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(root, word)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}
