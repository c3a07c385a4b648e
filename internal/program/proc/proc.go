package proc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// The exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUse     = 2
)

// echo is how long after the first signal further ones count as the same.
const echo = 200 * time.Millisecond

// Program is one program.
type Program struct {
	Settings *conf.Set
	Log      *obs.LogConfig // already declared in Settings
	// HeapRoom is by how many bytes its heap may grow before it is collected, at most;
	// 0 is 64 MiB.
	HeapRoom int64
	// Run does the program's work until it is done or ctx ends, and then
	// returns in good order.
	Run func(ctx context.Context, log *slog.Logger) error
}

// Main runs the program with the process's arguments, environment and
// signals, and returns the exit code.
func Main(p Program) int {
	signals := make(chan os.Signal, 3)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // by nohup
		// The terminal was closed, and nobody is left to end the program.
		signal.Notify(signals, syscall.SIGHUP)
		whenClosed(int(os.Stderr.Fd()), func() { signals <- syscall.SIGHUP })
	}
	defer signal.Stop(signals)
	twoAtOnce()
	growHeap(cmp.Or(p.HeapRoom, mostHeapRoom))
	return p.main(os.Args[1:], os.Environ(), os.Stdout, os.Stderr, signals, os.Exit)
}

func (p Program) main(args, environ []string, stdout, stderr io.Writer, signals <-chan os.Signal, exit func(int)) int {
	p.Settings.Command("version", "print what was built from which source", func() (string, error) {
		return obs.ReadVersion().String() + "\n", nil
	})
	proceed, err := p.Settings.Run(args, environ, stdout)
	if err != nil {
		fmt.Fprintf(stderr, "%v\nSee --help.\n", err) //nolint:errcheck // nowhere left to say it
		return exitUse
	}
	if !proceed {
		return exitOK
	}
	log, err := obs.NewLogger(stderr, *p.Log)
	if err != nil {
		fmt.Fprintln(stderr, err) //nolint:errcheck // nowhere left to say it
		return exitUse
	}

	log = log.With("program", p.Settings.Program())
	obs.Standard(log)
	for _, f := range p.Settings.Foreign() {
		level := slog.LevelDebug
		if f.InFile {
			level = slog.LevelWarn
		}
		log.Log(context.Background(), level, "a setting has no effect here", "because", f.String())
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	defer close(done)
	go func() { // ends with main
		var first time.Time
		for {
			select {
			case <-done:
				return
			case sig := <-signals:
				switch {
				case first.IsZero():
					first = time.Now()
					log.Info("stopping; a second signal ends at once", "signal", sig.String())
					cancel()
				case time.Since(first) > echo:
					log.Warn("second signal: ending at once", "signal", sig.String())
					exit(exitCode(sig))
					return
				}
			}
		}
	}()
	if err := p.Run(ctx, log); err != nil {
		err = p.Settings.HideIn(err)
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			log.Info("stopped before it was done", "error", err)
			return exitOK
		}
		log.Error("failed", "error", err)
		if errors.As(err, new(conf.Wrong)) {
			return exitUse
		}
		return exitFailure
	}
	return exitOK
}

// exitCode is what shells report for a process that the signal ended.
func exitCode(sig os.Signal) int {
	if s, ok := sig.(syscall.Signal); ok {
		return 128 + int(s)
	}
	return exitFailure
}
