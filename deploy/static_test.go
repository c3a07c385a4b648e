package deploy

import (
	"context"
	"debug/elf"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// The programs of the image need no loader and no library.
func TestProgramsAreStatic(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the image is for Linux")
	}
	for _, name := range []string{"kvindexer", "kvrouter", "kvpublisher", "kvmocker", "kvctl"} {
		f, err := elf.Open(program(t, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP {
				t.Errorf("%s has a loader", name)
			}
		}
		if libs, err := f.ImportedLibraries(); err != nil || len(libs) > 0 {
			t.Errorf("%s needs %v, %v", name, libs, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// kvindexer, alone in a root file system that is read-only, as user 65532 and
// without privileges: as in the image, whose layout this is. Its snapshots are in NATS, and it starts from one.
func TestTheProgramRunsWithoutRootOnAReadOnlyFileSystem(t *testing.T) {
	if runtime.GOOS != "linux" || os.Getuid() != 0 {
		t.Skip("skipped: only root on Linux can make the read-only root")
	}
	for _, tool := range []string{"unshare", "setpriv", "chroot", "mount"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("skipped: %s is not here (package util-linux)", tool)
		}
	}
	root := t.TempDir()
	data := filepath.Join(root, "var/lib/kvatlas")
	for _, dir := range []string{data, filepath.Join(root, "proc")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyFile(program(t, "kvindexer"), filepath.Join(root, "kvindexer")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(data, 65532, 65532); err != nil {
		t.Fatal(err)
	}
	// The root is mounted read-only in a mount namespace of its own; the data
	// directory alone stays writable.
	prepare := `set -e
mount --bind "$0" "$0"
mount --bind "$0/var/lib/kvatlas" "$0/var/lib/kvatlas"
mount -o remount,bind,ro "$0"
`
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Patience)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "unshare", "--mount", "sh", "-c", prepare, root).CombinedOutput(); err != nil {
		t.Skipf("skipped: no mount namespace here: %v: %s", err, out)
	}
	enter := `exec chroot --userspec=65532:65532 --groups= "$0" /kvindexer --data-dir=/var/lib/kvatlas --http-listen=127.0.0.1:0 --address-file=/var/lib/kvatlas/address --snapshot-interval=200ms`
	begin := func() (p *process, url string) {
		p = run(t, exec.Command("unshare", "--mount", "setpriv", "--no-new-privs", "--inh-caps=-all", "sh", "-c", prepare+enter, root), imageEnv(t, "/var/lib/kvatlas")...)
		return p, p.address(filepath.Join(data, "address"))
	}
	p, url := begin()
	p.eventually(func() error {
		_, err := get(t.Context(), url+"/readyz")
		return err
	})
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Name:\tkvindexer", "Uid:\t65532\t65532\t65532\t65532", "Gid:\t65532\t65532\t65532\t65532", "CapEff:\t0000000000000000", "NoNewPrivs:\t1"} {
		if !strings.Contains(string(status), want+"\n") {
			t.Errorf("no %q in\n%s", want, status)
		}
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", p.cmd.Process.Pid))
	if err != nil || !strings.Contains(string(mounts), " / ro,") {
		t.Errorf("%v: its root is not read-only:\n%s", err, mounts)
	}
	stop := func() {
		t.Helper()
		begun := time.Now()
		if code := p.stop(); code != 0 {
			t.Errorf("exit code %d after %v", code, time.Since(begun))
		}
	}
	if out, err := exec.Command(program(t, "kvmocker"), "--data-dir="+data, "--workers=1", "--requests=20", "--speed=0", "--progress=none").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	counts := func(series string) {
		t.Helper()
		p.eventually(func() error {
			text, err := get(t.Context(), url+"/metrics")
			if err == nil && !strings.Contains(text, "\n"+series) {
				err = fmt.Errorf("no %s yet", series)
			}
			return err
		})
	}
	counts("kvatlas_snapshots_total{") // it has been read again
	stop()
	p, url = begin()
	counts(`kvatlas_snapshot_restores_total{result="loaded"} 1`)
	stop()
	if entries, err := os.ReadDir(root); err != nil || len(entries) != 3 {
		t.Errorf("%v in the root, %v", entries, err)
	}
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Close()
}

// The real programs tell a service manager of their whole life.
func TestProgramsNotify(t *testing.T) {
	dir := t.TempDir()
	joined := start(t, "kvindexer", "--data-dir="+dir+"/p", "--http-listen=127.0.0.1:0", "--admin-listen=") // whose server kvpublisher joins
	defer joined.stop()
	for name, args := range map[string][]string{
		"kvindexer":   {"--data-dir=" + dir + "/i", "--http-listen=127.0.0.1:0"},
		"kvrouter":    {"--data-dir=" + dir + "/r", "--http-listen=127.0.0.1:0"},
		"kvpublisher": {"--data-dir=" + dir + "/p", "--admin-listen=127.0.0.1:0", "--worker=1", "--model=m", "--socket=" + socketPath(t), "--state-dir=none"},
	} {
		socket := socketPath(t)
		conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		until := func(line string) {
			t.Helper()
			if err := conn.SetReadDeadline(time.Now().Add(waittest.Patience)); err != nil {
				t.Fatal(err)
			}
			for b := make([]byte, 4096); ; {
				n, err := conn.Read(b)
				if err != nil {
					t.Fatalf("%s does not say %s: %v", name, line, err)
				}
				if slices.Contains(strings.Split(string(b[:n]), "\n"), line) {
					return
				}
			}
		}
		p := run(t, exec.Command(program(t, name), args...), "NOTIFY_SOCKET="+socket, "WATCHDOG_USEC=200000")
		until("READY=1")
		until("WATCHDOG=1")
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		until("STOPPING=1")
		if code := p.wait(); code != 0 {
			t.Errorf("%s: exit code %d", name, code)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}
