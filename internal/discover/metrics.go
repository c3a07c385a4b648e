package discover

import (
	"cmp"
	"time"
)

const (
	helpAsks   = "Engines that were asked what they serve, by result: answered, failed."
	helpOrders = "Requests to places of registration, by deed (register, unregister) and outcome: done, clash (something else is registered there, which is unregistered next), failed."
	helpKube   = "Lists and watches of the API server, by result: answered, failed (also a resource version that is too old)."
)

func (d *discovery) count(family, help string, pairs ...string) {
	d.metrics.Counter(family, help, pairs...).Inc()
}

// expose declares the metrics.
func (d *discovery) expose() {
	for _, r := range []string{"answered", "failed"} {
		d.metrics.Counter("kvatlas_discover_engine_asks_total", helpAsks, "result", r)
		d.metrics.Counter("kvatlas_discover_kubernetes_requests_total", helpKube, "result", r)
	}
	for _, o := range []Outcome{Done, Clash, Failed} {
		for _, deed := range []Deed{Register, Unregister} {
			d.metrics.Counter("kvatlas_discover_orders_total", helpOrders, "deed", deed.String(), "outcome", o.String())
		}
	}
	for s := range numStates {
		d.metrics.Gauge("kvatlas_discover_endpoints", "Ranks of pods, by state: waiting (the pod is not ready yet), asking (its engine is to say what it serves), wanted (it is to be registered), refused (its annotations cannot be used), publisher (its kvpublisher registers it).",
			func() float64 { return float64(d.shown.Load().states[s]) }, "state", s.String())
	}
	d.metrics.Gauge("kvatlas_discover_left_out_pods", "Pods beyond --max-pods.", func() float64 { return float64(d.shown.Load().beyond) })
	d.metrics.Gauge("kvatlas_discover_unread_objects", "Pods and pools that could not be read, since the start.", func() float64 { return float64(d.shown.Load().unparsed) })
	d.metrics.Gauge("kvatlas_discover_contact_seconds", "Since the API server answered; its watches are answered when they begin and end. -1: it never did.", func() float64 {
		at := d.shown.Load().contact
		if at.IsZero() {
			return -1
		}
		return time.Since(at).Seconds()
	})
	d.metrics.Gauge("kvatlas_discover_kubernetes_up", "1 if the last request to the API server was answered.", func() float64 {
		if s := d.shown.Load(); s.kube != "" || s.contact.IsZero() {
			return 0
		}
		return 1
	})
	for i, s := range d.servers {
		d.metrics.Gauge("kvatlas_discover_registered_workers", "Workers of this program's that are registered, as far as is known, by server (an URL of --register-at).",
			func() float64 { return float64(d.shown.Load().registered[i]) }, "server", s.url)
	}
}

// publish shows observers how things stand.
func (d *discovery) publish() {
	s := d.status
	s.synced = d.fleet.Synced()
	s.states, s.beyond, s.refused = d.fleet.Count()
	if s.poolMissing {
		s.kube = cmp.Or(s.kube, "there is no InferencePool "+d.cfg.Pool)
	}
	s.seen, s.places, s.registered = true, "", nil
	for _, x := range d.servers {
		s.seen = s.seen && x.ledger.known
		s.registered = append(s.registered, x.ledger.Count())
		if why := cmp.Or(x.failed, x.ledger.Why()); why != "" {
			s.places = x.url + ": " + why
		}
	}
	d.shown.Store(&s)
}
