package proc

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/startup"
)

// ServiceConfig holds the settings of a Service.
type ServiceConfig struct {
	AddressFile string        // names the HTTP address while the program runs; empty: none
	DrainDelay  time.Duration // between the signal and the end of answering
	StopTimeout time.Duration // for the end itself
}

// Declare adds the settings to the set. The end takes stopTimeout at most unless
// told; work is what gets to finish in it.
func (c *ServiceConfig) Declare(set *conf.Set, stopTimeout time.Duration, work string) {
	set.String(&c.AddressFile, "address-file", "", `File to write the HTTP address to (host:port and a line end) once the
		server listens, for scripts that let it choose the port. Removed at the end.`)
	set.Duration(&c.DrainDelay, "drain-delay", 0, `Time to go on answering after a signal to stop, with /readyz failing, so
		that load balancers notice first. On Kubernetes give 5s or more.`, conf.Between(0, time.Hour))
	set.Duration(&c.StopTimeout, "stop-timeout", stopTimeout, `Time for the end, after the drain delay. What is under way (`+work+`) may finish until
		the last quarter of it, at most 10s, which is for what comes after. Give supervisors the sum of both and some seconds
		more before they kill.`, conf.Between(0, 24*time.Hour))
}

// Service is a program that serves until it is told to stop: it tells scripts
// its address, systemd its state, and ends in order. The goroutine of
// Program.Run owns it.
type Service struct {
	cfg    ServiceConfig
	log    *slog.Logger
	notify *notifier
	state  func() string

	stop   context.CancelFunc // ends the watchdog's goroutine
	ended  chan struct{}      // closed when it has
	silent chan struct{}      // closed when state is not to be asked any more
}

// NewService returns the service of this process. State says why requests should
// not come yet, "" if they may; it is asked on any goroutine, for the gauge
// kvatlas_ready at any time.
func NewService(cfg ServiceConfig, log *slog.Logger, m *obs.Metrics, state func() string) *Service {
	s := newService(cfg, log, state, os.Getenv)
	m.Gauge("kvatlas_ready", "1 while /readyz succeeds.", func() float64 {
		select {
		case <-s.silent:
			return 0
		default:
		}
		if state() == "" {
			return 1
		}
		return 0
	})
	return s
}

func newService(cfg ServiceConfig, log *slog.Logger, state func() string, getenv func(string) string) *Service {
	return &Service{cfg: cfg, log: log, state: state, notify: newNotifier(getenv, log), silent: make(chan struct{})}
}

// Listening writes the address file, if there is to be one.
func (s *Service) Listening(address string) error {
	if s.cfg.AddressFile == "" {
		return nil
	}
	// A reader sees all of the address or no file.
	temp := s.cfg.AddressFile + ".new"
	if err := os.WriteFile(temp, []byte(address+"\n"), 0o600); err != nil {
		return fmt.Errorf("writing the address file: %w", err)
	}
	if err := os.Rename(temp, s.cfg.AddressFile); err != nil {
		return fmt.Errorf("writing the address file: %w", err)
	}
	return nil
}

// Run is a program's time between the opening of its port and its end: it tells the
// address, calls start, tells how far that is once a second, and waits until ctx ends
// or serving does, which served tells. alive is Started's.
func (s *Service) Run(ctx context.Context, address string, served <-chan error, start func(context.Context) error,
	progress func() startup.Report, alive func(context.Context) error) error {
	if err := s.Listening(address); err != nil {
		return err
	}
	s.log.Info("listening", "address", address, "version", obs.ReadVersion().String())
	telling, stop := context.WithCancel(ctx)
	var told sync.WaitGroup
	defer told.Wait()
	defer stop()
	told.Go(func() { startup.Tell(telling, time.Second, s.log, progress) })
	if err := start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // told to stop before it was done
		}
		return err
	}
	s.Started(alive)
	select {
	case <-ctx.Done():
		return nil
	case err := <-served:
		return err
	}
}

// Started tells systemd that the program is up, and from now on that it is
// alive. Alive, if it is not nil, takes the locks that the program's work takes
// and waits for its goroutines, so that a program that hangs falls silent and is
// started anew; after an error nothing is said either. Its ctx ends with Stop.
func (s *Service) Started(alive func(ctx context.Context) error) {
	s.notify.send("READY=1", "STATUS="+status(s.state()))
	if s.notify.watchdog == 0 {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stop, s.ended = cancel, make(chan struct{})
	go func() { // ends with Stop
		defer close(s.ended)
		tick := time.NewTicker(s.notify.watchdog)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			select {
			case <-s.silent:
				s.notify.send("WATCHDOG=1") // what state asks is being taken down
			default:
				if alive != nil {
					if err := alive(ctx); err != nil {
						s.log.Warn("no sign of life is given", "error", err)
						continue
					}
				}
				s.notify.send("WATCHDOG=1", "STATUS="+status(s.state()))
			}
		}
	}()
}

func status(why string) string {
	if why == "" {
		return "ready"
	}
	return "not ready: " + strings.ReplaceAll(why, "\n", "; ")
}

// Step is a part of the end.
type Step struct {
	Name string
	// Run does it, and gives up when ctx ends.
	Run func(ctx context.Context) error
}

// late is how long a step may go on after the end of its context, before it is
// left alone.
const late = 5 * time.Second

// Stop ends the program: unready makes readiness fail; after the drain delay the
// steps follow each other, the first of which lets requests finish. All steps
// run, whatever the others return. Those that need longer than there is time are
// left alone and named in the error.
func (s *Service) Stop(unready func(), steps ...Step) error {
	delay, timeout := s.cfg.DrainDelay, s.cfg.StopTimeout
	// The unit's own TimeoutStopSec need not know what the settings say.
	s.notify.send("STOPPING=1", "STATUS=draining", "EXTEND_TIMEOUT_USEC="+
		strconv.FormatInt((delay+timeout+time.Duration(len(steps)+1)*late).Microseconds(), 10))
	close(s.silent)
	unready()
	if delay > 0 {
		s.log.Info("draining", "delay", delay)
		time.Sleep(delay)
	}
	end := time.Now().Add(timeout)
	var errs []error
	for i, step := range steps {
		until := end
		if i == 0 {
			until = end.Add(-min(timeout/4, 10*time.Second))
		}
		errs = append(errs, s.run(step, until))
	}
	if s.cfg.AddressFile != "" {
		if err := os.Remove(s.cfg.AddressFile); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("removing the address file: %w", err))
		}
	}
	if s.stop != nil {
		s.stop()
		<-s.ended
	}
	err := errors.Join(errs...)
	if err == nil {
		s.log.Info("stopped")
	}
	return err
}

// run runs a step until the time, and a little longer.
func (s *Service) run(step Step, until time.Time) error {
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	s.log.Debug("ending", "step", step.Name)
	done := make(chan error, 1)
	go func() { done <- step.Run(ctx) }() // ends with the step, or with the process
	timer := time.NewTimer(max(0, time.Until(until)) + late)
	defer timer.Stop()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%s: %w", step.Name, err)
		}
		return nil
	case <-timer.C:
		return fmt.Errorf("%s: not done in time (see --stop-timeout)", step.Name)
	}
}

// ReplicaName names the process after its host and process id, in the
// characters that a replica's name may have.
func ReplicaName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return replicaName(host, os.Getpid())
}

// longestHost leaves room in a replica's name for a process id, and for what tells the
// replicas of a process apart.
const longestHost = 47

func replicaName(host string, pid int) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '_'
	}, host)
	if len(name) > longestHost { // pods differ in the end of their names, and each has process id 1
		name = fmt.Sprintf("%s-%08x", name[:longestHost-9], crc32.ChecksumIEEE([]byte(host)))
	}
	return name + "-" + strconv.Itoa(pid)
}
