package discover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/internal/discover/kube"
	"github.com/kvatlas/kvatlas/internal/program/admin"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/proc"
	"github.com/kvatlas/kvatlas/internal/program/secure"
)

// longest is the longest pause after what was in vain.
const longest = time.Minute

// server is a place of registration.
type server struct {
	url     string
	client  *client.Client
	ledger  Ledger
	looking bool      // a look is under way
	next    time.Time // the next look
	failed  string    // why the last look failed; "" if it did not
	busy    int       // orders under way
}

// discovery is the running program.
type discovery struct {
	cfg     Config
	log     *slog.Logger
	metrics *obs.Metrics
	kube    *kube.Client
	asker   asker
	now     func() time.Time

	inputs chan func() // what happened, for run's goroutine
	work   sync.WaitGroup
	shown  atomic.Pointer[status]

	// Of run's goroutine:
	fleet    Fleet
	servers  []*server
	asking   int // engines
	selector string
	unfollow context.CancelFunc // ends the following of pods
	status   status
}

// status is what observers see.
type status struct {
	synced      bool
	kube        string    // why the API server's last answer was none; ""
	contact     time.Time // of the last that was one
	states      [numStates]int
	beyond      int
	unparsed    uint64
	refused     string // a pod, and why
	places      string // why a registration, or a look, fails
	registered  []int  // by server
	seen        bool   // each server was looked at
	poolMissing bool
}

// Run discovers until ctx ends.
func Run(ctx context.Context, cfg Config, log *slog.Logger) error {
	d, err := newDiscovery(&cfg, obs.NewMetrics(), log)
	if err != nil {
		return err
	}
	defer d.kube.Close()
	return d.serve(ctx)
}

// newDiscovery makes all that needs no connection.
func newDiscovery(c *Config, m *obs.Metrics, log *slog.Logger) (*discovery, error) {
	engines, err := c.open(log)
	if err != nil {
		return nil, err
	}
	cfg := *c
	d := &discovery{cfg: cfg, log: log, metrics: m, now: time.Now, inputs: make(chan func(), 64)}
	if d.kube, err = kube.New(cfg.Kube); err != nil {
		return nil, err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	secure.Dialer((&net.Dialer{Timeout: cfg.Timeout}).DialContext).Into(transport, engines.TLS())
	d.asker = asker{engines: engines, http: &http.Client{Transport: transport, Timeout: cfg.Timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	if err := d.openServers(); err != nil {
		return nil, err
	}
	d.fleet = Fleet{Prefix: "k8s/" + cfg.Namespace + "/" + cfg.Name + "/", Most: cfg.MaxPods, Least: cfg.Retry, Longest: longest, Defaults: Defaults{
		Facts: Facts{Model: cfg.Model, BlockSize: uint32(cfg.BlockSize)}, Group: cfg.Group, Ports: []uint16{uint16(cfg.HTTPPort)},
		Events: uint16(cfg.Events), Replay: uint16(cfg.Replay), Snapshot: uint16(cfg.Snapshot), HTTPS: cfg.HTTPS,
	}}
	for _, s := range d.servers {
		s.ledger = Ledger{Prefix: d.fleet.Prefix, Least: cfg.Retry, Longest: longest}
	}
	d.publish()
	d.expose()
	return d, nil
}

// openServers makes the clients of the places of registration.
func (d *discovery) openServers() error {
	settings, err := d.cfg.Dial.Open(d.log, "register")
	if err != nil {
		return err
	}
	dial := secure.Dialer((&net.Dialer{Timeout: d.cfg.Timeout, KeepAlive: 30 * time.Second}).DialContext).TLS(settings)
	for _, u := range d.cfg.Servers {
		cfg := client.Config{URL: u, DialTLS: dial, Timeout: d.cfg.Timeout, Retries: -1} // the ledger tries again
		if d.cfg.ServerToken != "" {
			cfg.Token = client.TokenFile(d.cfg.ServerToken)
		}
		c, err := client.New(cfg)
		if err != nil {
			return fmt.Errorf("--register-at: %w", err)
		}
		d.servers = append(d.servers, &server{url: u, client: c})
	}
	return nil
}

// serve runs the admin port beside the work.
func (d *discovery) serve(ctx context.Context) error {
	service := proc.NewService(d.cfg.Service, d.log, d.metrics, d.waiting)
	access, err := d.cfg.Access.Open(d.log)
	if err != nil {
		return err
	}
	port, err := admin.Start(ctx, d.cfg.Admin, admin.Deps{
		Access: access, Metrics: d.metrics, Settings: d.cfg.settings, Level: d.cfg.Log.Var, Log: d.log,
		Health: &edge.Health{Checks: []edge.Check{
			{Name: "pods", Reason: d.waiting},
			{Name: "kubernetes", Note: true, Reason: func() string { return d.shown.Load().kube }},
			{Name: "registration", Note: true, Reason: func() string { return d.shown.Load().places }},
			{Name: "annotations", Note: true, Reason: func() string { return d.shown.Load().refused }},
		}},
	})
	if err != nil {
		return err
	}
	stop := func() error { return nil }
	if port != nil {
		stop = port.Close
		if err := service.Listening(port.Address()); err != nil {
			return errors.Join(err, stop())
		}
	}
	service.Started(nil)
	d.run(ctx)
	return service.Stop(func() {}, proc.Step{Name: "closing HTTP", Run: func(context.Context) error { return stop() }})
}

// waiting says why not all pods are known and registered yet: only at the start.
func (d *discovery) waiting() string {
	switch s := d.shown.Load(); {
	case !s.synced && s.kube != "":
		return "the pods are not known yet: " + s.kube
	case !s.synced:
		return "the pods are not known yet"
	case !s.seen:
		return "who is registered is not known yet: " + s.places
	}
	return ""
}

// run owns the machines until ctx ends; what it started has ended when it returns.
func (d *discovery) run(ctx context.Context) {
	defer d.work.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if d.cfg.Pool != "" {
		d.followPool(ctx)
	} else {
		d.followPods(ctx, d.cfg.Selector)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case input := <-d.inputs:
			input()
		}
		next := d.step(ctx)
		d.publish()
		timer.Reset(max(0, next.Sub(d.now())))
	}
}

// tell gives run's goroutine what happened.
func (d *discovery) tell(ctx context.Context, input func()) error {
	select {
	case d.inputs <- input:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// step begins what is due, and returns when there is more.
func (d *discovery) step(ctx context.Context) time.Time {
	for _, r := range d.fleet.Refusals() {
		d.log.Warn("a worker is not registered: mend its pod's annotations", "worker", r.Name, "reason", r.Why)
	}
	now := d.now()
	next := now.Add(d.cfg.Every)
	sooner := func(at time.Time) {
		if !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	asks, at := d.fleet.Due(now, d.cfg.Concurrency-d.asking)
	sooner(at)
	for _, a := range asks {
		d.asking++
		d.work.Go(func() {
			begun := d.now()
			facts, err := d.asker.ask(ctx, a)
			_ = d.tell(ctx, func() { d.answered(a, facts, err, begun) }) // else it ends
		})
	}
	wanted := d.fleet.Wanted()
	for _, s := range d.servers {
		if !s.looking && !now.Before(s.next) {
			d.look(ctx, s)
		}
		if !s.looking {
			sooner(s.next)
		}
		orders, at := s.ledger.Due(now, wanted, d.fleet.Departs, d.cfg.Concurrency-s.busy)
		sooner(at)
		for _, o := range orders {
			d.order(ctx, s, o)
		}
	}
	return next
}

// answered takes what an engine said.
func (d *discovery) answered(a Ask, facts Facts, err error, begun time.Time) {
	d.asking--
	result := "answered"
	if err != nil {
		result = "failed"
		d.log.Debug("an engine does not say what it serves", "worker", a.Name, "url", a.URL, "error", err)
	}
	d.count("kvatlas_discover_engine_asks_total", helpAsks, "result", result)
	d.fleet.Answered(a, facts, err, begun, d.now())
}

// look asks a place of registration whom it knows.
func (d *discovery) look(ctx context.Context, s *server) {
	s.looking, s.next = true, d.now().Add(d.cfg.Every)
	look := s.ledger.Look()
	d.work.Go(func() {
		spaces, err := s.client.Workers(ctx, "")
		var list []Place
		for _, sp := range spaces {
			for _, w := range sp.Workers {
				if w.Info != nil && byHTTP(w.Info.Sources) {
					list = append(list, Place{Name: w.Info.Name, Model: sp.Model, Group: sp.Group, BlockSize: uint32(sp.BlockSize)})
				}
			}
		}
		_ = d.tell(ctx, func() { // else it ends
			s.looking = false
			if err != nil {
				if s.failed == "" {
					d.log.Warn("a place of registration does not say whom it knows", "url", s.url, "error", err)
				}
				s.failed = err.Error()
				s.next = d.now().Add(min(d.cfg.Every, 5*d.cfg.Retry))
				return
			}
			s.failed = ""
			s.ledger.Saw(look, list)
		})
	})
}

// byHTTP reports whether a worker is registered by HTTP, among others.
func byHTTP(sources []string) bool {
	for _, s := range sources {
		if s == "http" {
			return true
		}
	}
	return false
}

// order asks a place of registration to register or unregister.
func (d *discovery) order(ctx context.Context, s *server, o Order) {
	s.busy++
	d.work.Go(func() {
		begun := d.now()
		var err error
		if o.Deed == Register {
			err = s.client.Register(ctx, []byte(o.Body))
		} else {
			err = s.client.Unregister(ctx, o.Place.Name, o.Place.Model, o.Place.Group, o.Place.BlockSize)
		}
		_ = d.tell(ctx, func() { // else it ends
			s.busy--
			outcome, why := Done, ""
			switch {
			case errors.Is(err, client.ErrRegisteredOtherwise):
				outcome, why = Clash, err.Error()
			case err != nil:
				outcome, why = Failed, err.Error()
				if s.ledger.Why() == "" {
					d.log.Warn("a worker cannot be "+o.Deed.String()+"ed", "worker", o.Place.Name, "url", s.url, "error", err)
				}
			default:
				d.log.Info("worker "+o.Deed.String()+"ed", "worker", o.Place.Name, "model", o.Place.Model, "url", s.url)
			}
			d.count("kvatlas_discover_orders_total", helpOrders, "deed", o.Deed.String(), "outcome", outcome.String())
			s.ledger.Did(o, outcome, why, begun, d.now())
		})
	})
}

// listFactor is how many times the pods that are followed a list may have: those beyond are left
// out by the Fleet, which knows and counts them; what is beyond this is no list to hold in memory.
const listFactor = 16

// followPods follows the pods of the selector, in place of those before.
func (d *discovery) followPods(ctx context.Context, selector string) {
	if d.unfollow != nil {
		d.unfollow()
	}
	d.selector = selector
	ctx, d.unfollow = context.WithCancel(ctx)
	d.follow(ctx, kube.List{
		Path: "/api/v1/namespaces/" + d.cfg.Namespace + "/pods", Query: url.Values{"labelSelector": {selector}}, Most: listFactor * d.cfg.MaxPods,
	}, func(c kube.Change) {
		if ctx.Err() != nil {
			return // of a selector that holds no more
		}
		d.onPods(c)
	})
}

// followPool follows the one pool.
func (d *discovery) followPool(ctx context.Context) {
	d.follow(ctx, kube.List{
		Path:  "/apis/inference.networking.k8s.io/v1/namespaces/" + d.cfg.Namespace + "/inferencepools",
		Query: url.Values{"fieldSelector": {"metadata.name=" + d.cfg.Pool}}, Most: 1,
	}, func(c kube.Change) {
		d.status.poolMissing = c.Kind == kube.Deleted || len(c.Objects) == 0
		if d.status.poolMissing {
			d.log.Warn("there is no such InferencePool; what is known of it holds on", "pool", d.cfg.Pool, "namespace", d.cfg.Namespace)
			return
		}
		p, err := ParsePool(c.Objects[0])
		if err != nil {
			d.status.unparsed++
			d.log.Warn("the InferencePool cannot be used; what was known of it holds on", "error", err)
			return
		}
		d.fleet.Serve(p.Ports)
		if p.Selector != d.selector {
			d.followPods(ctx, p.Selector)
		}
	})
}

// follow follows a list, and has changes applied by run's goroutine.
func (d *discovery) follow(ctx context.Context, l kube.List, apply func(kube.Change)) {
	l.Watch, l.Least, l.Longest = d.cfg.Watch, d.cfg.Retry, longest
	l.Sink = func(ctx context.Context, c kube.Change) error { return d.tell(ctx, func() { apply(c) }) }
	l.Contact = func(err error) {
		_ = d.tell(ctx, func() { d.contact(err) }) // else it ends
	}
	d.work.Go(func() {
		if err := d.kube.Follow(ctx, l); ctx.Err() == nil {
			d.log.Error("the API server is not followed any more", "error", err)
		}
	})
}

// contact takes how a request to the API server ended.
func (d *discovery) contact(err error) {
	result := "answered"
	if err == nil {
		if d.status.kube != "" {
			d.log.Info("the API server answers again")
		}
		d.status.kube, d.status.contact = "", d.now()
	} else {
		result = "failed"
		if d.status.kube == "" {
			d.log.Warn("the API server is away or says no; what is known of the pods holds on", "error", err)
		}
		d.status.kube = err.Error()
	}
	d.count("kvatlas_discover_kubernetes_requests_total", helpKube, "result", result)
}

// onPods takes a change of the pods.
func (d *discovery) onPods(c kube.Change) {
	var pods []Pod
	var unread []string
	for _, text := range c.Objects {
		p, err := ParsePod(text)
		if c.Kind == kube.Deleted && p.Name != "" {
			d.fleet.Deleted(p.Name) // whatever else it was
			return
		}
		if err != nil {
			d.status.unparsed++
			d.log.Warn("a pod cannot be read; what is known of it holds on", "error", err)
			unread = append(unread, p.Name)
			continue
		}
		pods = append(pods, p)
	}
	switch {
	case c.Kind == kube.Replaced:
		d.fleet.Replaced(pods, unread...)
	case len(pods) > 0:
		d.fleet.Stored(pods[0])
	case len(unread) > 0:
		d.fleet.Unread(unread[0])
	}
}
