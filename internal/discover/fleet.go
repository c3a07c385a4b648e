package discover

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/pace"
	"github.com/kvatlas/kvatlas/registry"
)

// State is where an endpoint, one rank of a pod, stands.
type State uint8

// The states.
const (
	Waiting State = iota // the pod is not ready yet, or has no address
	Asking               // its engine is to say what it serves
	Wanted               // it is to be registered
	Refused              // its annotations, or what its engine says, cannot be used
	Left                 // its kvpublisher registers it
	numStates
)

func (s State) String() string {
	return [...]string{"waiting", "asking", "wanted", "refused", "publisher"}[s]
}

// endpoint is one rank of a pod.
type endpoint struct {
	pod   Pod
	rank  int
	state State
	was   Facts // what the engine said
	why   string
	asked bool // the engine is being asked
	asks  pace.Pace
	place Place  // where wanted
	body  string // the same
}

// Fleet knows the pods, and which workers they come to. It has no clock and does no
// I/O.
type Fleet struct {
	// Prefix begins the name of every worker.
	Prefix   string
	Defaults Defaults
	Most     int // pods; more are left out and counted
	// Least and Longest are how long is waited before an engine is asked again.
	Least, Longest time.Duration

	synced bool // the API server gave a whole list
	pods   map[string][]*endpoint
	beyond map[string]bool // left out
	unread map[string]bool // pods that are there, and cannot be read: they are as they were
	hidden bool            // the last list had some without a name: whoever it did not name may be one

	refusals []Refusal // since they were taken
}

// Refusal is why a worker is not registered.
type Refusal struct{ Name, Why string }

// Ask is an engine that is to be asked.
type Ask struct {
	Name, Pod, UID string // of the worker, and its pod
	Rank           int
	URL            string
}

// Synced reports whether all pods are known, so that who has none may go.
func (f *Fleet) Synced() bool { return f.synced }

// Departs reports whether a worker of this name that is not wanted may go.
func (f *Fleet) Departs(name string) bool {
	if !f.synced || f.hidden {
		return false
	}
	pod := strings.TrimPrefix(name, f.Prefix)
	if at := strings.LastIndex(pod, rankOf); at > 0 && f.unread[pod[:at]] {
		return false
	}
	return !f.unread[pod]
}

// Unread takes that a pod has changed, which cannot be read.
func (f *Fleet) Unread(name string) {
	if f.unread == nil {
		f.unread = make(map[string]bool)
	}
	if name != "" {
		f.unread[name] = true
	}
}

// Replaced takes the whole list of pods, with the names of those that cannot be read, "" for one
// whose name cannot be either.
func (f *Fleet) Replaced(pods []Pod, unread ...string) {
	before := f.pods
	f.pods, f.beyond, f.synced = make(map[string][]*endpoint), make(map[string]bool), true
	f.unread, f.hidden = nil, slices.Contains(unread, "")
	if f.hidden {
		maps.Copy(f.pods, before)
	}
	for _, name := range unread {
		f.Unread(name)
		if before[name] != nil {
			f.pods[name] = before[name]
		}
	}
	for _, p := range pods { // those that were there keep their place
		if before[p.Name] != nil {
			f.pods[p.Name] = before[p.Name]
		}
	}
	for _, p := range pods {
		f.Stored(p)
	}
}

// Stored takes a pod that is new or has changed.
func (f *Fleet) Stored(p Pod) {
	if f.pods == nil {
		f.pods, f.beyond = make(map[string][]*endpoint), make(map[string]bool)
	}
	delete(f.unread, p.Name)
	if p.Ended {
		f.Deleted(p.Name)
		return
	}
	list := f.pods[p.Name]
	if len(list) > 0 && list[0].pod.UID != p.UID || len(list) != len(f.Defaults.Ports) {
		list = nil // another pod of that name
	}
	if list == nil {
		if f.pods[p.Name] == nil && len(f.pods) >= f.Most {
			f.beyond[p.Name] = true
			return
		}
		for rank := range f.Defaults.Ports {
			list = append(list, &endpoint{rank: rank})
		}
		f.pods[p.Name] = list
		delete(f.beyond, p.Name)
	}
	for _, e := range list {
		if e.pod.IP != p.IP { // whatever was known was of what answered there
			*e = endpoint{rank: e.rank}
		}
		e.pod = p
		f.look(e)
	}
}

// Serve says at which ports the engines answer from now on.
func (f *Fleet) Serve(ports []uint16) {
	if slices.Equal(ports, f.Defaults.Ports) {
		return
	}
	f.Defaults.Ports = ports
	for _, list := range f.pods {
		p := list[0].pod
		delete(f.pods, p.Name)
		f.Stored(p)
	}
}

// Deleted takes a pod that is gone.
func (f *Fleet) Deleted(name string) {
	delete(f.pods, name)
	delete(f.beyond, name)
	delete(f.unread, name)
}

// rankOf stands between a pod's name and a rank.
const rankOf = "-rank-"

// name returns the name of the endpoint's worker, as an InferencePool calls it.
func (f *Fleet) name(e *endpoint) string {
	if len(f.Defaults.Ports) == 1 {
		return f.Prefix + e.pod.Name
	}
	return f.Prefix + e.pod.Name + rankOf + strconv.Itoa(e.rank)
}

// look says where the endpoint stands, as far as is known.
func (f *Fleet) look(e *endpoint) {
	if e.pod.Notes[noteRegisteredBy] == byPublisher {
		e.state, e.why = Left, ""
		return
	}
	if e.pod.IP == "" || !e.pod.Ready && e.state != Wanted && e.state != Refused {
		e.state, e.why = Waiting, ""
		return
	}
	facts, err := f.Defaults.facts(&e.pod)
	if facts.Model == "" {
		facts.Model = e.was.Model
	}
	if facts.BlockSize == 0 {
		facts.BlockSize = e.was.BlockSize
	}
	if err == nil && (facts.Model == "" || facts.BlockSize == 0) {
		if e.state != Asking {
			e.state, e.why = Asking, ""
		}
		return
	}
	var w registry.Worker
	if err == nil {
		w, err = f.Defaults.worker(f.name(e), &e.pod, e.rank, facts)
	}
	if err == nil {
		if err = w.Check(); err != nil {
			err = fmt.Errorf("its annotations %s*: %w", Annotation, err)
		}
	}
	var text []byte
	if err == nil {
		text, err = json.Marshal(form{WorkerID: w.Name, Worker: nameless(w)})
	}
	if err != nil {
		f.refuse(e, err)
		return
	}
	e.state, e.why, e.body = Wanted, "", string(text)
	e.place = Place{Name: w.Name, Model: w.Model, Group: w.Group, BlockSize: w.BlockSize}
}

// refuse says why the endpoint cannot be registered, once for each reason. An annotation may be long.
func (f *Fleet) refuse(e *endpoint, err error) {
	why := fmt.Sprintf("%.500s", err)
	if e.state != Refused || e.why != why {
		f.refusals = append(f.refusals, Refusal{f.name(e), why})
	}
	e.state, e.why = Refused, why
}

// Refusals returns what was refused since it was asked last.
func (f *Fleet) Refusals() []Refusal {
	list := f.refusals
	f.refusals = nil
	return list
}

// form is the body of POST /register, as a list has a worker: by its name.
type form struct {
	WorkerID string `json:"worker_id"`
	registry.Worker
}

func nameless(w registry.Worker) registry.Worker {
	w.Name = ""
	return w
}

// Due returns engines that are to be asked now, at most so many, and when the next one
// is; the zero time where none waits.
func (f *Fleet) Due(now time.Time, most int) (list []Ask, next time.Time) {
	for _, pod := range f.pods {
		for _, e := range pod {
			switch {
			case e.state != Asking || e.asked:
			case e.asks.Ready(now) && len(list) < most:
				e.asked = true
				list = append(list, Ask{Name: f.name(e), Pod: e.pod.Name, UID: e.pod.UID, Rank: e.rank, URL: f.Defaults.url(&e.pod, e.rank)})
			case !e.asks.Ready(now) && (next.IsZero() || e.asks.Next().Before(next)):
				next = e.asks.Next()
			}
		}
	}
	return list, next
}

// Answered takes what an engine said of itself, or why it said nothing.
func (f *Fleet) Answered(a Ask, facts Facts, err error, begun, now time.Time) {
	list := f.pods[a.Pod]
	if a.Rank >= len(list) || list[a.Rank].pod.UID != a.UID || f.Defaults.url(&list[a.Rank].pod, a.Rank) != a.URL {
		return // of one that is gone
	}
	e := list[a.Rank]
	e.asked = false
	if err == nil {
		e.was = facts
		f.look(e)
		if e.state == Asking {
			err = fmt.Errorf("its engine does not say %s: annotate the pod, or give it as a setting", missing(facts, &e.pod, &f.Defaults))
		}
	}
	if err != nil {
		if e.state == Asking {
			e.why = err.Error()
		}
		e.asks.Later(begun, now, f.Least, f.Longest, event.WorkerID(a.Name))
		return
	}
	e.asks.Progress()
}

// missing names what is not known of the pod's engine.
func missing(said Facts, p *Pod, d *Defaults) string {
	f, _ := d.facts(p)
	switch {
	case f.Model == "" && said.Model == "":
		return "its model"
	default:
		return "its block size"
	}
}

// Wanted returns what is to be registered, and where.
func (f *Fleet) Wanted() map[Place]string {
	list := make(map[Place]string)
	for _, pod := range f.pods {
		for _, e := range pod {
			if e.state == Wanted {
				list[e.place] = e.body
			}
		}
	}
	return list
}

// Count is how many endpoints are in each state, how many pods are beyond the limit,
// and a reason why one of them is not wanted.
func (f *Fleet) Count() (states [numStates]int, beyond int, why string) {
	first := ""
	for name, pod := range f.pods {
		for _, e := range pod {
			states[e.state]++
			if e.why != "" && e.state != Wanted && (first == "" || name < first) {
				first, why = name, "pod "+name+": "+e.why
			}
		}
	}
	return states, len(f.beyond), why
}
