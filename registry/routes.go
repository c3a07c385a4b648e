package registry

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// The HTTP routes take three forms of a body: a worker as a static list has it, if
// it names "worker_id"; else the fields of Mooncake's RFC 1403 if it names
// "modelname", of Dynamo's standalone indexer if it names "model_name". Of these two
// other fields are ignored, as those servers do, but for engine_scheme.

// DefaultGroup is what both APIs call the default group, which has no name
// here.
const DefaultGroup = "default"

// GroupOf returns the routing group that an API of Mooncake or Dynamo names:
// its "default" is the group without a name.
func GroupOf(name string) string {
	if name == DefaultGroup {
		return ""
	}
	return name
}

// GroupName is the opposite of GroupOf.
func GroupName(group string) string {
	if group == "" {
		return DefaultGroup
	}
	return group
}

// registration is the body of POST /register and /unregister. Fields that may be left out
// are pointers where leaving out says something else than the zero value: no group is any
// group to /unregister, and "" the one without a name.
type registration struct {
	InstanceID       json.RawMessage `json:"instance_id"`
	Endpoint         *string         `json:"endpoint"`
	ReplayEndpoint   *string         `json:"replay_endpoint"`
	SnapshotEndpoint *string         `json:"snapshot_endpoint"`
	BlockSize        *uint32         `json:"block_size"`
	DPRank           *uint32         `json:"dp_rank"`
	Lora             string          `json:"lora_name"`
	EngineScheme     string          `json:"engine_scheme"` // of neither API

	ModelName      *string `json:"model_name"` // Dynamo
	RoutingGroup   *string `json:"routing_group"`
	AdditionalSalt *string `json:"additional_salt"`

	RFCModel *string `json:"modelname"` // RFC 1403
	Type     *string `json:"type"`
	TenantID *string `json:"tenant_id"`
	Salt     *string `json:"additionalsalt"` // an alias of Dynamo's, too

	WorkerID json.RawMessage `json:"worker_id"` // of a static list's form
	Unpaired bool            `json:"unpaired"`  // beside its fields: those that it goes with are yet to come

	own   *Worker // in that form
	rfc   bool
	id    uint64
	name  string
	model string
	group *string // by its name here; nil: all
}

// refusal is an answer that says no.
type refusal struct {
	status int
	err    error
}

func refuse(status int, format string, args ...any) *refusal {
	return &refusal{status, fmt.Errorf(format, args...)}
}

func (r *refusal) answer() (int, []byte) {
	return r.status, edge.JSON(map[string]string{"error": r.err.Error()})
}

// parse reads a body and the fields that both routes need.
func (q *registration) parse(body []byte) *refusal {
	if err := json.Unmarshal(body, q); err != nil {
		return refuse(http.StatusBadRequest, "not a registration: %v", err)
	}
	switch {
	case q.WorkerID != nil:
		return q.parseOwn(body)
	// A body that names both is of Dynamo's form.
	case q.ModelName != nil:
		q.model, q.group = *q.ModelName, q.RoutingGroup
	case q.RFCModel != nil:
		q.rfc, q.model, q.group = true, *q.RFCModel, q.TenantID
		if q.group == nil {
			group := DefaultGroup
			q.group = &group
		}
	default:
		return refuse(http.StatusBadRequest, "model_name is missing (in the form of RFC 1403: modelname; of a list of workers: worker_id and model)")
	}
	if q.group != nil {
		group := GroupOf(*q.group)
		q.group = &group
	}
	var err error
	if q.id, q.name, err = parseID(q.InstanceID); err != nil {
		return refuse(http.StatusBadRequest, "instance_id: %v", err)
	}
	return nil
}

// parseOwn reads a body in the form of a static list. To unregister, less will do.
func (q *registration) parseOwn(body []byte) *refusal {
	var form struct {
		Model     string  `json:"model"`
		Group     string  `json:"group"`
		BlockSize *uint32 `json:"block_size"`
	}
	var err error
	if err = json.Unmarshal(body, &form); err == nil {
		q.id, q.name, err = parseID(q.WorkerID)
	}
	if err != nil {
		return refuse(http.StatusBadRequest, "worker_id: %v", err)
	}
	if form.Model == "" {
		return refuse(http.StatusBadRequest, "model is missing")
	}
	q.model, q.group, q.BlockSize, q.own = form.Model, &form.Group, form.BlockSize, new(Worker)
	return nil
}

// workers returns what a body registers, a rank each.
func (q *registration) workers(body []byte, allow Allow) ([]Worker, *refusal) {
	if q.own == nil {
		w, no := q.worker(allow)
		return []Worker{w}, no
	}
	var fields any
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber() // ids have 64 bits
	err := d.Decode(&fields)
	if m, ok := fields.(map[string]any); ok {
		delete(m, "unpaired") // it is of the request, and not the worker's
	}
	if err == nil {
		*q.own, err = parseStaticWorker(fields)
	}
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "%v", err)
	}
	if err := q.own.allowed(allow); err != nil {
		return nil, &refusal{http.StatusForbidden, err}
	}
	list := make([]Worker, len(q.own.Ranks))
	for i, rank := range q.own.Ranks {
		list[i] = q.own.only(rank)
	}
	return list, nil
}

// allowed checks all of the worker's addresses.
func (w *Worker) allowed(allow Allow) error {
	var list []string
	list = slices.AppendSeq(list, maps.Values(w.Endpoints.Events))
	list = slices.AppendSeq(list, maps.Values(w.Endpoints.Replay))
	list = slices.AppendSeq(list, maps.Values(w.Endpoints.Snapshot))
	if w.Endpoints.HTTP != "" {
		list = append(list, w.Endpoints.HTTP)
	}
	for _, meeting := range [...]string{w.Endpoints.Bootstrap, w.Endpoints.Peer} {
		if meeting != "" {
			list = append(list, "tcp://"+meeting)
		}
	}
	for i := range w.Pools {
		if from := w.Pools[i].Source; from != nil {
			list = append(list, from.Events, from.Keys)
		}
	}
	slices.Sort(list)
	for _, e := range list {
		if err := allow.Check(e); err != nil {
			return err
		}
	}
	return nil
}

// only returns the worker with one of its ranks.
func (w *Worker) only(rank uint32) Worker {
	one := *w
	one.Ranks = []uint32{rank}
	for _, of := range []*map[uint32]string{&one.Endpoints.Events, &one.Endpoints.Replay, &one.Endpoints.Snapshot} {
		e := (*of)[rank]
		if *of = nil; e != "" {
			*of = map[uint32]string{rank: e}
		}
	}
	return one
}

// worker returns what a body of the other forms registers: one rank.
func (q *registration) worker(allow Allow) (w Worker, no *refusal) {
	switch {
	case q.Endpoint == nil || *q.Endpoint == "":
		return w, refuse(http.StatusBadRequest, "endpoint is missing")
	case q.BlockSize == nil:
		return w, refuse(http.StatusBadRequest, "block_size is missing")
	case q.rfc && q.DPRank == nil:
		return w, refuse(http.StatusBadRequest, "dp_rank is missing")
	case q.rfc && (q.Type == nil || !slices.Contains([]string{"vllm", "sglang", "mooncake"}, strings.ToLower(*q.Type))):
		return w, refuse(http.StatusBadRequest, "type: give vLLM, SGLang or Mooncake")
	}
	rank := uint32(0)
	if q.DPRank != nil {
		rank = *q.DPRank
	}
	w = Worker{
		ID: q.id, Name: q.name, Model: q.model, BlockSize: *q.BlockSize, Ranks: []uint32{rank},
		Transport: ZMQ, Lora: q.Lora, EngineScheme: q.EngineScheme,
		Endpoints: Endpoints{Events: map[uint32]string{rank: *q.Endpoint}},
	}
	if q.group != nil {
		w.Group = *q.group
	}
	for _, salt := range []*string{q.AdditionalSalt, q.Salt} {
		if salt != nil {
			w.Salt = *salt
		}
	}
	endpoints := []string{*q.Endpoint}
	for _, more := range [...]struct {
		at *string
		of *map[uint32]string
	}{{q.ReplayEndpoint, &w.Endpoints.Replay}, {q.SnapshotEndpoint, &w.Endpoints.Snapshot}} {
		if more.at != nil && *more.at != "" {
			*more.of = map[uint32]string{rank: *more.at}
			endpoints = append(endpoints, *more.at)
		}
	}
	// Whoever may register makes every replica connect to where they say, again and again:
	// so each endpoint is compared with what is allowed before it gets into the bucket.
	for _, e := range endpoints {
		if err := allow.Check(e); err != nil {
			return w, &refusal{http.StatusForbidden, err}
		}
		if strings.HasPrefix(e, "http") {
			return w, refuse(http.StatusBadRequest, "endpoint %q: engines publish their events at tcp:// or ipc://", e)
		}
	}
	if err := w.normalise(); err != nil {
		return w, refuse(http.StatusBadRequest, "%v", err)
	}
	return w, nil
}

// routeWait bounds the wait for the bucket.
const routeWait = 5 * time.Second

// ServeRegister answers POST /register. The registration is stored when it
// returns; listeners start later, as GET /workers shows.
func (r *Registry) ServeRegister(ctx context.Context, body []byte) (status int, answer []byte) {
	var q registration
	if no := q.parse(body); no != nil {
		return no.answer()
	}
	list, no := q.workers(body, r.cfg.Allow)
	if no != nil {
		return no.answer()
	}
	for i := range list {
		if no := r.room(&list[i]); no != nil {
			return no.answer()
		}
	}
	if no := r.paired(&q, &list[0]); no != nil {
		return no.answer()
	}
	ctx, cancel := context.WithTimeout(ctx, routeWait)
	defer cancel()
	// The bucket decides, not what this replica knows: two may be asked for one rank at once.
	for _, w := range list {
		revision, repeated, err := r.store().addHTTP(ctx, w)
		switch {
		case errors.Is(err, ErrAlready):
			return (&refusal{http.StatusConflict, err}).answer()
		case err != nil:
			return r.unavailable(err)
		case repeated && !q.rfc && q.own == nil:
			return refuse(http.StatusConflict, "rank %d of instance %s is registered already", w.Ranks[0], idText(w.ID, w.Name)).answer()
		}
		r.await(ctx, func() bool { return r.mu.seen >= revision })
	}
	if q.rfc {
		return http.StatusOK, edge.JSON(map[string]string{"status": "registered successfully", "instance_id": idText(q.id, q.name)})
	}
	return http.StatusCreated, edge.JSON(map[string]string{"status": "ok"})
}

// room refuses a rank that does not go with the others of its instance. It goes by what
// this replica knows, which may be late: what comes in all the same is joined by merged.
func (r *Registry) room(w *Worker) *refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch m := r.mu.ledger.members[w.Key()]; {
	case m == nil:
	case m.crowded(w.Ranks[0]):
		return refuse(http.StatusBadRequest, "instance %s has %d ranks already", idText(w.ID, w.Name), maxRanks)
	case m.otherwise(w):
		return refuse(http.StatusConflict, "other ranks of instance %s are registered with another lora_name, additional_salt or engine_scheme", idText(w.ID, w.Name))
	}
	return nil
}

// paired refuses a prefill or decode worker that no prompt would get from or to. Like room it goes by what this
// replica knows: what comes in all the same is not paired, and is warned of.
func (r *Registry) paired(q *registration, w *Worker) *refusal {
	if q.Unpaired {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if why := r.mu.ledger.unpaired(w); why != "" {
		return refuse(http.StatusConflict, "no prompt gets from or to the workers of the model that are there: %s. Mend that, or say \"unpaired\": true if others are to come", why)
	}
	return nil
}

func (r *Registry) unavailable(err error) (int, []byte) {
	err = obs.Plain(unanswered(err))
	r.cfg.Log.Warn("what was asked of the registry over HTTP failed", "error", err)
	return refuse(http.StatusServiceUnavailable, "the registry's store does not answer, try again: %v", err).answer()
}

func idText(id uint64, name string) string {
	if name != "" {
		return name
	}
	return strconv.FormatUint(id, 10)
}

// ServeUnregister answers POST /unregister: it takes away what was registered
// over HTTP of the instance, in all groups and ranks that the body does not
// narrow down.
func (r *Registry) ServeUnregister(ctx context.Context, body []byte) (status int, answer []byte) {
	var q registration
	if no := q.parse(body); no != nil {
		return no.answer()
	}
	ctx, cancel := context.WithTimeout(ctx, routeWait)
	defer cancel()
	if err := r.catchUp(ctx); err != nil { // a rank that nobody takes away is followed for good
		return r.unavailable(err)
	}
	targets, announced := r.httpRanks(&q)
	if len(targets) == 0 && announced {
		return refuse(http.StatusConflict, "instance %s announces itself: stop it, or drain it with kvctl", idText(q.id, q.name)).answer()
	}
	if len(targets) == 0 {
		return refuse(http.StatusNotFound, "no such instance is registered: %s", idText(q.id, q.name)).answer()
	}
	if err := r.store().removeHTTP(ctx, targets); err != nil {
		return r.unavailable(err)
	}
	removed := []string{}
	for _, t := range targets {
		removed = append(removed, fmt.Sprintf("%s|%s|%d", idText(q.id, q.name), GroupName(t.key.Space.Group), t.rank))
	}
	r.await(ctx, func() bool {
		return !slices.ContainsFunc(targets, func(t target) bool {
			m := r.mu.ledger.members[t.key]
			return m != nil && m.http[t.rank] != nil
		})
	})
	if q.rfc {
		return http.StatusOK, edge.JSON(map[string]any{"status": "unregistered successfully", "removed_instances": removed})
	}
	return http.StatusOK, edge.JSON(map[string]string{"status": "ok"})
}

// target is one rank that is registered over HTTP.
type target struct {
	key      Key
	rank     uint32
	worker   Worker
	revision uint64
}

// httpRanks returns the ranks that a body is about, sorted.
func (r *Registry) httpRanks(q *registration) (targets []target, announced bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, m := range r.mu.ledger.members {
		if k.Worker != q.id || k.Space.Model != q.model ||
			q.group != nil && k.Space.Group != *q.group ||
			q.BlockSize != nil && k.Space.BlockSize != *q.BlockSize {
			continue
		}
		announced = announced || m.lease != nil || m.static != nil
		for rank, h := range m.http {
			if q.DPRank == nil || *q.DPRank == rank {
				targets = append(targets, target{k, rank, h.worker, h.revision})
			}
		}
	}
	slices.SortFunc(targets, func(a, b target) int { return cmp.Or(a.key.compare(b.key), cmp.Compare(a.rank, b.rank)) })
	return targets, announced
}

// listed is a worker in the answer of GET /workers.
type listed struct {
	InstanceID   any                       `json:"instance_id"` // a number, or the name it was registered by
	Source       string                    `json:"source"`
	Status       string                    `json:"status"`
	ModelName    string                    `json:"model_name"`
	RoutingGroup string                    `json:"routing_group"`
	BlockSize    uint32                    `json:"block_size"`
	Endpoints    map[uint32]string         `json:"endpoints"`
	Listeners    map[uint32]listedListener `json:"listeners"`
	Drained      bool                      `json:"drained"`
}

type listedListener struct {
	Endpoint  string `json:"endpoint"`
	Status    string `json:"status"`
	LastError string `json:"last_error,omitempty"`
}

// ServeWorkers answers GET /workers. Empty texts do not narrow it down.
func (r *Registry) ServeWorkers(model, group string) []byte {
	list := []listed{}
	for _, e := range r.Snapshot(true) {
		if e.State == Gone || model != "" && e.Model != model || group != "" && e.Group != GroupOf(group) {
			continue
		}
		x := listed{
			InstanceID: e.ID, Source: string(e.Transport), Status: e.listenerStatus(),
			ModelName: e.Model, RoutingGroup: GroupName(e.Group), BlockSize: e.BlockSize,
			Endpoints: map[uint32]string{}, Listeners: map[uint32]listedListener{}, Drained: e.Drained,
		}
		if e.Name != "" {
			x.InstanceID = e.Name
		}
		for rank, l := range e.Listeners {
			x.Endpoints[rank] = l.Endpoint
			x.Listeners[rank] = listedListener{l.Endpoint, l.Status, l.Error}
		}
		list = append(list, x)
	}
	return edge.JSON(list)
}

// listenerStatus is the worst state of the worker's listeners; of a worker
// that has none, what its own state comes to.
func (e *Entry) listenerStatus() string {
	for _, status := range []string{ListenerFailed, ListenerPending, ListenerActive, ListenerPaused} {
		for _, l := range e.Listeners {
			if l.Status == status {
				return status
			}
		}
	}
	switch e.State {
	case Live:
		return ListenerActive
	case Suspect:
		return ListenerPending
	}
	return ListenerFailed
}
