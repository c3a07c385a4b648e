package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

type result struct {
	code           int
	stdout, stderr string
}

// start runs a program and returns what it did.
func start(t *testing.T, args []string, signals chan os.Signal, exit func(int), run func(context.Context) error) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	var log obs.LogConfig
	set := conf.New("kvtest", "A test.")
	log.Declare(set)
	p := Program{Settings: set, Log: &log, Run: func(ctx context.Context, _ *slog.Logger) error { return run(ctx) }}
	code := p.main(args, nil, &stdout, &stderr, signals, exit)
	return result{code: code, stdout: stdout.String(), stderr: stderr.String()}
}

func noExit(t *testing.T) func(int) {
	return func(code int) { t.Errorf("exited with %d", code) }
}

func TestExitCodes(t *testing.T) {
	good := func(context.Context) error { return nil }
	bad := func(context.Context) error { return errors.New("disk is full") }
	never := func(context.Context) error { t.Error("ran"); return nil }
	if r := start(t, nil, nil, noExit(t), good); r.code != 0 {
		t.Errorf("%+v", r)
	}
	if r := start(t, nil, nil, noExit(t), bad); r.code != 1 || !strings.Contains(r.stderr, "disk is full") {
		t.Errorf("%+v", r)
	}
	wrong := func(context.Context) error {
		return fmt.Errorf("connect: %w", conf.Wrong{Err: errors.New("no JetStream")})
	}
	if r := start(t, nil, nil, noExit(t), wrong); r.code != 2 || !strings.Contains(r.stderr, "connect: no JetStream") {
		t.Errorf("%+v", r)
	}
	if r := start(t, []string{"--nope=1"}, nil, noExit(t), never); r.code != 2 || !strings.Contains(r.stderr, "unknown flag --nope") {
		t.Errorf("%+v", r)
	}
	if r := start(t, []string{"version"}, nil, noExit(t), never); r.code != 0 || !strings.Contains(r.stdout, "go1.") {
		t.Errorf("%+v", r)
	}
	if r := start(t, []string{"--help"}, nil, noExit(t), never); r.code != 0 || !strings.Contains(r.stdout, "--log-format") {
		t.Errorf("%+v", r)
	}
}

func TestFirstSignalStopsInOrder(t *testing.T) {
	signals := make(chan os.Signal, 1)
	r := start(t, nil, signals, noExit(t), func(ctx context.Context) error {
		signals <- syscall.SIGTERM
		<-ctx.Done()
		return nil
	})
	if r.code != 0 || !strings.Contains(r.stderr, "terminated") {
		t.Errorf("%+v", r)
	}
}

// What a signal cuts short, as the opening of a stream, has not failed; what fails after
// a signal has.
func TestCutShortIsNoFailure(t *testing.T) {
	after := func(err func(context.Context) error) result {
		signals := make(chan os.Signal, 1)
		return start(t, nil, signals, noExit(t), func(ctx context.Context) error {
			signals <- syscall.SIGTERM
			<-ctx.Done()
			return err(ctx)
		})
	}
	if r := after(func(ctx context.Context) error { return fmt.Errorf("open the stream: %w", ctx.Err()) }); r.code != 0 {
		t.Errorf("%+v", r)
	}
	if r := after(func(context.Context) error { return errors.New("disk is full") }); r.code != 1 {
		t.Errorf("%+v", r)
	}
	own := func(context.Context) error { return fmt.Errorf("a request: %w", context.Canceled) }
	if r := start(t, nil, nil, noExit(t), own); r.code != 1 {
		t.Errorf("%+v", r)
	}
}

func TestSecondSignalEndsAtOnceButAnEchoDoesNot(t *testing.T) {
	for sig, want := range map[os.Signal]int{syscall.SIGTERM: 143, os.Interrupt: 130} {
		synctest.Test(t, func(t *testing.T) {
			signals := make(chan os.Signal, 2)
			exited := make(chan int, 1)
			start(t, nil, signals, func(code int) { exited <- code }, func(ctx context.Context) error {
				signals <- sig
				<-ctx.Done()
				signals <- sig // the echo
				synctest.Wait()
				if len(exited) > 0 {
					t.Errorf("%v: exited at the echo", sig)
				}
				time.Sleep(2 * echo)
				signals <- sig
				if code := <-exited; code != want {
					t.Errorf("%v: exit code %d, want %d", sig, code, want)
				}
				return nil
			})
		})
	}
}
