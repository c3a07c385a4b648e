package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/snapshot/keeper"
	"github.com/kvatlas/kvatlas/snapshot/store"
)

// errUse is wrapped by errors of wrong use.
var errUse = errors.New("see kvctl --help")

func exitCode(err error) int {
	switch {
	case errors.Is(err, errUse), errors.As(err, new(conf.Wrong)):
		return exitUse
	case errors.Is(err, registry.ErrUnknownWorker), errors.Is(err, store.ErrNotFound), errors.Is(err, errNoDecision), errors.Is(err, errNoModel):
		return exitUnknown
	case errors.Is(err, registry.ErrAlready), errors.Is(err, registry.ErrAlive), errors.Is(err, keeper.ErrAlive), errors.Is(err, errRefused):
		return exitRefused
	}
	return exitFailure
}

// run does what the arguments say.
func (c *config) run(ctx context.Context) error {
	if len(c.args) == 2 && c.args[0] == "ready" {
		return c.ready(ctx, c.args[1])
	}
	switch {
	case len(c.args) == 1 && c.args[0] == "doctor":
		return c.doctor(ctx)
	case len(c.args) > 0 && c.args[0] == "tokenizers":
		return c.tokenizers(ctx, c.args[1:])
	case len(c.args) == 1 && c.args[0] == "decisions", len(c.args) == 2 && c.args[0] == "decisions" && c.args[1] == "export":
		return c.decisions(ctx, len(c.args) == 2)
	case len(c.args) == 2 && c.args[0] == "why" && c.args[1] != "":
		return c.why(ctx, c.args[1])
	}
	if len(c.args) > 0 && c.args[0] == "snapshot" {
		return c.snapshots(ctx, c.args[1:])
	}
	if len(c.args) == 1 && c.args[0] == "reset" {
		return c.reset(ctx)
	}
	switch given := conf.HideCredentials(strings.Join(c.args, " ")); {
	case given == "":
		return fmt.Errorf("give one of: %s: %w", usage, errUse)
	case len(c.args) < 2 || c.args[0] != "worker":
		return fmt.Errorf("%q is no whole command; give one of: %s: %w", given, usage, errUse)
	}
	verb, rest := c.args[1], c.args[2:]
	switch {
	case !slices.Contains([]string{"list", "drain", "resume", "remove"}, verb):
		return fmt.Errorf("no command %q; give one of: %s: %w", verb, usage, errUse)
	case verb == "list" && len(rest) > 0:
		return fmt.Errorf("worker list takes no argument, not %q: %w", rest[0], errUse)
	case verb != "list" && (len(rest) != 1 || rest[0] == ""):
		return fmt.Errorf("worker %s takes one worker, its id or its name: %w", verb, errUse)
	}
	ctx, cancel := context.WithTimeout(ctx, c.wait)
	defer cancel()
	b, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer b.Close() //nolint:errcheck // everything is acknowledged
	bucket, err := registry.OpenBucket(ctx, b.Conn(), c.namespace, registry.BucketConfig{})
	if err != nil {
		return err
	}
	if verb == "list" {
		return c.list(ctx, bucket)
	}
	return c.change(ctx, bucket, verb, rest[0])
}

// connect joins the NATS that there is.
func (c *config) connect(ctx context.Context) (*broker.Broker, error) {
	c.broker.Name, c.broker.JoinOnly = "kvctl", true
	c.broker.Log = slog.New(slog.DiscardHandler) // what goes wrong is in the error
	return broker.Open(ctx, c.broker)
}

// change drains, resumes or removes a worker and says so.
func (c *config) change(ctx context.Context, b *registry.Bucket, verb, name string) error {
	id := event.WorkerID(name)
	all, err := b.Read(ctx)
	if err != nil {
		return err
	}
	known := slices.ContainsFunc(all.Workers, func(e registry.Entry) bool { return e.Key.Worker == id })
	said := ""
	if !known && verb == "drain" && !c.force {
		return fmt.Errorf("drain %s: %w; --force leaves a mark for when it registers", name, registry.ErrUnknownWorker)
	}
	switch verb {
	case "drain":
		err, said = b.Drain(ctx, id, c.by), "is drained: it gets no new requests and forgets nothing"
	case "resume":
		err, said = b.Resume(ctx, id), "gets requests again"
	case "remove":
		err, said = b.Remove(ctx, id, c.force), "is removed: its blocks leave every index"
	}
	if err != nil {
		return err
	}
	if !known && verb == "drain" {
		said += " (it is not registered; the mark waits for it)"
	}
	if c.json {
		return c.print(map[string]any{"worker": name, "done": verb, "registered": known && verb != "remove"})
	}
	_, err = fmt.Fprintf(c.out, "worker %s %s\n", name, said)
	return err
}

// print prints one JSON object.
func (c *config) print(object map[string]any) error { return json.NewEncoder(c.out).Encode(object) }

// listed is a worker in the JSON list.
type listed struct {
	ID          string   `json:"worker_id"`
	Name        string   `json:"name,omitempty"`
	State       string   `json:"state"`
	Drained     bool     `json:"drained"`
	DrainedBy   string   `json:"drained_by,omitempty"`
	Model       string   `json:"model,omitempty"`
	BlockSize   uint32   `json:"block_size,omitempty"`
	Group       string   `json:"group,omitempty"`
	Ranks       []uint32 `json:"dp_ranks,omitempty"`
	Role        string   `json:"role,omitempty"`
	Transport   string   `json:"transport,omitempty"`
	Sources     []string `json:"sources"`
	Pools       []string `json:"pools,omitempty"`
	TotalBlocks uint64   `json:"total_blocks,omitempty"`
	HeardAgo    float64  `json:"heard_seconds_ago,omitempty"`
	Lease       float64  `json:"lease_seconds,omitempty"`
	Mismatch    string   `json:"mismatch,omitempty"`
}

// list prints the workers, and those that are drained without being registered.
func (c *config) list(ctx context.Context, b *registry.Bucket) error {
	all, err := b.Read(ctx)
	if err != nil {
		return err
	}
	workers := []listed{}
	shown := make(map[uint64]bool)
	for i := range all.Workers {
		e := &all.Workers[i]
		shown[e.Key.Worker] = true
		if c.model == "" || c.model == e.Model {
			workers = append(workers, c.describe(e))
		}
	}
	for _, d := range all.Drained {
		if !shown[d.Worker] && c.model == "" {
			workers = append(workers, listed{ID: strconv.FormatUint(d.Worker, 10), State: "unregistered", Drained: true, DrainedBy: d.By, Sources: []string{}})
		}
	}
	if c.json {
		return c.print(map[string]any{"workers": workers, "ignored_values": len(all.Corrupt)})
	}
	return c.table(workers, all.Corrupt)
}

func (c *config) describe(e *registry.Entry) listed {
	w := listed{
		ID: strconv.FormatUint(e.ID, 10), Name: e.Name, State: e.State.String(), Drained: e.Drained, DrainedBy: e.DrainedBy,
		Model: e.Model, BlockSize: e.BlockSize, Group: e.Group, Ranks: e.Ranks, Role: string(e.Role),
		Transport: string(e.Transport), Sources: []string{}, TotalBlocks: e.TotalBlocks, Lease: e.Lease.Seconds(), Mismatch: e.Mismatch,
	}
	if e.Lease > 0 {
		w.Sources = append(w.Sources, "announced")
		w.HeardAgo = max(0, c.now().Sub(e.LastSeen).Seconds())
	}
	if e.HTTP {
		w.Sources = append(w.Sources, "http")
	}
	for i := range e.Pools {
		w.Pools = append(w.Pools, e.Pools[i].Name)
	}
	return w
}

// table prints the workers for people.
func (c *config) table(workers []listed, ignored []registry.Corrupt) error {
	t := tabwriter.NewWriter(c.out, 0, 4, 2, ' ', 0)
	rows := []string{"WORKER\tSTATE\tMODEL\tBLOCK SIZE\tGROUP\tRANKS\tROLE\tTRANSPORT\tHEARD\tREMARK"}
	for _, w := range workers {
		name, state, heard, remark := w.ID, w.State, "", w.Mismatch
		if w.Name != "" {
			name = w.Name
		}
		if w.Drained {
			state += ", drained"
			if w.DrainedBy != "" {
				remark = strings.TrimSpace("drained by " + w.DrainedBy + " " + remark)
			}
		}
		if len(w.Pools) > 0 {
			remark = strings.TrimSpace("pools " + strings.Join(w.Pools, ", ") + " " + remark)
		}
		if w.Lease > 0 {
			heard = time.Duration(w.HeardAgo*float64(time.Second)).Round(100*time.Millisecond).String() + " ago"
		}
		size := ""
		if w.BlockSize > 0 {
			size = strconv.Itoa(int(w.BlockSize))
		}
		rows = append(rows, strings.Join([]string{name, state, w.Model, size, w.Group,
			strings.Trim(strings.ReplaceAll(fmt.Sprint(w.Ranks), " ", ","), "[]"), w.Role, w.Transport, heard, remark}, "\t"))
	}
	for _, row := range rows {
		if _, err := fmt.Fprintln(t, row); err != nil {
			return err
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, x := range ignored {
		if _, err := fmt.Fprintf(c.out, "ignored: %s: %s\n", x.Key, x.Error); err != nil {
			return err
		}
	}
	return nil
}
