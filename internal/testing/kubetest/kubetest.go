// Package kubetest is as much of a Kubernetes API server as following a list needs:
// lists in pages, watches with bookmarks, versions that get too old, cut connections.
//
// Invariant: each change has a version of its own, and a watch from a version has all
// changes after it that its selector is about, or an error if they are forgotten.
//
// Ownership: API.mu guards everything; a watch's goroutine is its HTTP request's.
package kubetest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Object is an object as JSON has it.
type Object map[string]any

// Pod returns a pod that is ready at an address.
func Pod(name, uid, ip string, labels, notes map[string]string) Object {
	return Object{
		"metadata": map[string]any{"name": name, "uid": uid, "labels": labels, "annotations": notes},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": "engine", "image": "engine"}}},
		"status": map[string]any{"phase": "Running", "podIP": ip,
			"conditions": []any{map[string]any{"type": "Ready", "status": "True"}}},
	}
}

// change is one of an API's history.
type change struct {
	version      int
	kind, plural string
	object       Object // as it is after it, or was last
	before       Object // nil: it is new
}

// API is the server.
type API struct {
	mu      sync.Mutex
	changed chan struct{} // closed with each change
	cut     chan struct{} // closed to cut connections
	version int
	oldest  int // changes up to it are forgotten
	objects map[string]map[string]Object
	history []change
	away    bool
	// Asked is how many requests there were.
	asked map[string]int
	// Page is how many objects a page has at most.
	Page int
	// Token, if set, is needed.
	Token string
}

// New returns a server without objects.
func New() *API {
	return &API{changed: make(chan struct{}), cut: make(chan struct{}), version: 100, oldest: 100,
		objects: map[string]map[string]Object{}, asked: map[string]int{}, Page: 3}
}

func meta(o Object) map[string]any { m, _ := o["metadata"].(map[string]any); return m }

func copied(o Object) Object {
	text, err := json.Marshal(o)
	var c Object
	if err != nil || json.Unmarshal(text, &c) != nil {
		panic(fmt.Sprint("an object that is no JSON: ", err)) // the test's own
	}
	return c
}

// Store creates or replaces an object of a kind (pods, inferencepools).
func (a *API) Store(plural string, o Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	o = copied(o)
	name, _ := meta(o)["name"].(string)
	kind := "ADDED"
	before := a.objects[plural][name]
	if before != nil {
		kind = "MODIFIED"
	}
	if a.objects[plural] == nil {
		a.objects[plural] = map[string]Object{}
	}
	a.objects[plural][name] = o
	a.changeLocked(kind, plural, o, before)
}

// Delete removes an object.
func (a *API) Delete(plural, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.objects[plural][name]
	if before == nil {
		return
	}
	delete(a.objects[plural], name)
	a.changeLocked("DELETED", plural, copied(before), before)
}

func (a *API) changeLocked(kind, plural string, o, before Object) {
	a.version++
	meta(o)["resourceVersion"] = strconv.Itoa(a.version)
	a.history = append(a.history, change{version: a.version, kind: kind, plural: plural, object: o, before: before})
	close(a.changed)
	a.changed = make(chan struct{})
}

// Cut ends all requests that are under way.
func (a *API) Cut() {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.cut)
	a.cut = make(chan struct{})
}

// Forget makes all versions until now too old, and ends all requests.
func (a *API) Forget() {
	a.mu.Lock()
	a.version++
	a.oldest, a.history = a.version, nil
	a.mu.Unlock()
	a.Cut()
}

// Away makes every request end without an answer, or no longer.
func (a *API) Away(away bool) {
	a.mu.Lock()
	a.away = away
	a.mu.Unlock()
	a.Cut()
}

// Saved is the state of a server at a moment.
type Saved struct {
	version, oldest int
	objects         map[string]map[string]Object
	history         []change
}

// Save returns what Restore takes.
func (a *API) Save() Saved {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := Saved{a.version, a.oldest, map[string]map[string]Object{}, slices.Clone(a.history)}
	for plural, list := range a.objects {
		s.objects[plural] = maps.Clone(list)
	}
	return s
}

// Restore has it be as it was, as from a backup of etcd: versions begin again from there. It
// ends all requests; s is used up.
func (a *API) Restore(s Saved) {
	a.mu.Lock()
	a.version, a.oldest, a.objects, a.history = s.version, s.oldest, s.objects, s.history
	a.mu.Unlock()
	a.Cut()
}

// Asked returns how many lists or watches there were of a kind.
func (a *API) Asked(what string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked[what]
}

func status(w http.ResponseWriter, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(Object{"kind": "Status", "apiVersion": "v1", "code": code, "message": message}) // the client may be gone
}

// selects reports whether an object is among those that a request is about.
func selects(r *http.Request, o Object) bool {
	if o == nil {
		return false
	}
	if name, ok := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name="); ok && meta(o)["name"] != name {
		return false
	}
	labels, _ := meta(o)["labels"].(map[string]any)
	for term := range strings.SplitSeq(r.URL.Query().Get("labelSelector"), ",") {
		key, value, ok := strings.Cut(term, "=")
		if ok && labels[key] != value {
			return false
		}
	}
	return true
}

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.URL.Path, "/")
	plural := parts[len(parts)-1]
	a.mu.Lock()
	away, token := a.away, a.Token
	what := "list " + plural
	if r.URL.Query().Get("watch") != "" {
		what = "watch " + plural
	}
	a.asked[what]++
	a.mu.Unlock()
	switch {
	case away:
		panic(http.ErrAbortHandler)
	case token != "" && r.Header.Get("Authorization") != "Bearer "+token:
		status(w, http.StatusForbidden, "pods is forbidden")
	case r.URL.Query().Get("watch") != "":
		a.watch(w, r, plural)
	default:
		a.list(w, r, plural)
	}
}

// list answers a page. The continuation is the name of the last one and the version.
func (a *API) list(w http.ResponseWriter, r *http.Request, plural string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	version, after := a.version, ""
	if at, name, ok := strings.Cut(r.URL.Query().Get("continue"), "/"); ok {
		version, _ = strconv.Atoi(at)
		after = name
		if version != a.version { // this server keeps no old lists
			status(w, http.StatusGone, "the continuation is too old")
			return
		}
	}
	items, next := []Object{}, ""
	for _, name := range slices.Sorted(maps.Keys(a.objects[plural])) {
		o := a.objects[plural][name]
		if name <= after || !selects(r, o) {
			continue
		}
		if len(items) == a.Page {
			next = fmt.Sprintf("%d/%s", version, meta(items[len(items)-1])["name"])
			break
		}
		items = append(items, o)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(Object{"kind": "List", "metadata": Object{"resourceVersion": strconv.Itoa(version), "continue": next}, "items": items})
}

// watch answers changes as they come.
func (a *API) watch(w http.ResponseWriter, r *http.Request, plural string) {
	from, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	out := json.NewEncoder(w)
	flush := http.NewResponseController(w).Flush
	a.mu.Lock()
	cut := a.cut
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	for err == nil {
		a.mu.Lock()
		changed, history, tooOld, version := a.changed, a.history, from < a.oldest, a.version
		a.mu.Unlock()
		if tooOld { // in the stream, as a server does whose watch has begun
			_ = out.Encode(Object{"type": "ERROR", "object": Object{"kind": "Status", "code": http.StatusGone, "message": "too old resource version"}})
			return
		}
		for _, c := range history {
			if err == nil && c.version > from && c.plural == plural {
				err = send(out, r, &c)
			}
		}
		if version > from && err == nil {
			from = version
			err = out.Encode(Object{"type": "BOOKMARK", "object": Object{"kind": "Pod", "metadata": Object{"resourceVersion": strconv.Itoa(version)}}})
		}
		_ = flush() // it is known from the next write
		select {
		case <-changed:
		case <-cut:
			panic(http.ErrAbortHandler)
		case <-r.Context().Done():
			return
		}
	}
}

// send writes what a change is to who selects: one that is selected no more is deleted.
func send(out *json.Encoder, r *http.Request, c *change) error {
	kind, is, was := c.kind, selects(r, c.object), selects(r, c.before)
	switch {
	case kind == "MODIFIED" && is && !was:
		kind = "ADDED"
	case kind == "MODIFIED" && !is && was, kind == "DELETED" && was:
		kind = "DELETED"
	case !is:
		return nil
	}
	return out.Encode(Object{"type": kind, "object": c.object})
}
