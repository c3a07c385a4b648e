package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/shard"
	"github.com/kvatlas/kvatlas/snapshot"
	"github.com/kvatlas/kvatlas/snapshot/keeper"
	"github.com/kvatlas/kvatlas/snapshot/store"
)

// snapshotVerbs are the commands on snapshots, with how many arguments each
// takes.
var snapshotVerbs = map[string]int{"list": 0, "inspect": 1, "verify": 1, "restore": 2, "delete": 1}

// snapshots does what the arguments after "snapshot" say.
func (c *config) snapshots(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("give one of: %s: %w", usage, errUse)
	}
	n, ok := snapshotVerbs[args[0]]
	if !ok || len(args)-1 != n {
		return fmt.Errorf("snapshot %s; give one of: %s: %w", strings.Join(args, " "), usage, errUse)
	}
	// A file can be looked at without NATS.
	if verb := args[0]; verb == "inspect" || verb == "verify" {
		switch f, err := os.Open(args[1]); {
		case err == nil:
			defer f.Close() //nolint:errcheck // it is only read
			return c.show(verb, args[1], f)
		case strings.ContainsRune(args[1], filepath.Separator) && errors.Is(err, os.ErrNotExist):
			return fmt.Errorf("there is no file %s: %w", args[1], store.ErrNotFound)
		case strings.ContainsRune(args[1], filepath.Separator) || !errors.Is(err, os.ErrNotExist):
			return fmt.Errorf("reading a snapshot: %w", err)
		}
		if err := checkName(args[1]); err != nil {
			return fmt.Errorf("there is no such file, and %w", err)
		}
	}
	return c.withKeeper(ctx, func(ctx context.Context, b *broker.Broker, k *keeper.Keeper) error {
		kept, err := c.stores(ctx, b, k)
		if err != nil {
			return err
		}
		if args[0] == "list" {
			return c.listSnapshots(kept)
		}
		at, err := find(kept, args[1])
		if err != nil {
			return err
		}
		switch args[0] {
		case "restore":
			return c.copySnapshot(ctx, k, at, args[1], args[2])
		case "delete":
			return c.deleteSnapshot(ctx, k, at, args[1])
		}
		f, err := at.store.Open(ctx, args[1])
		if err != nil {
			return err
		}
		return errors.Join(c.show(args[0], args[1], f), f.Close())
	})
}

// reset purges the streams and deletes the snapshots of the namespace.
func (c *config) reset(ctx context.Context) error {
	return c.withKeeper(ctx, func(ctx context.Context, _ *broker.Broker, k *keeper.Keeper) error {
		if err := k.Reset(ctx, c.force); err != nil {
			return err
		}
		return c.done("all", "reset", "the streams of namespace "+c.namespace+" are purged and their snapshots deleted")
	})
}

// withKeeper connects and calls f. --wait bounds the connecting only.
func (c *config) withKeeper(ctx context.Context, f func(ctx context.Context, b *broker.Broker, k *keeper.Keeper) error) error {
	connect, cancel := context.WithTimeout(ctx, c.wait)
	defer cancel()
	b, err := c.connect(connect)
	if err != nil {
		return err
	}
	defer b.Close() //nolint:errcheck // everything is acknowledged
	set := shard.New(shard.Config{})
	defer set.Close()
	k, err := keeper.Open(keeper.Config{
		Conn: b.Conn(), Namespace: c.namespace, Replica: "kvctl-" + strconv.Itoa(os.Getpid()), Set: set, Dir: c.snapshotDir,
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	return f(ctx, b, k)
}

// kept is the snapshots of one stream.
type kept struct {
	stream    string
	space     event.Space
	store     store.Store
	snapshots []store.Found // best first
	fault     error         // why the manifest does not have all of them
}

func (c *config) stores(ctx context.Context, b *broker.Broker, k *keeper.Keeper) ([]kept, error) {
	js, err := jetstream.New(b.Conn())
	if err != nil {
		return nil, err
	}
	infos, err := stream.List(ctx, js, c.namespace)
	if err != nil && !errors.Is(err, stream.ErrUnsafe) {
		return nil, err
	}
	var list []kept
	for _, info := range infos {
		if c.model != "" && info.Space.Model != c.model || c.blockSize != 0 && info.Space.BlockSize != uint32(c.blockSize) ||
			c.stream != "" && info.Name != c.stream {
			continue
		}
		s, err := k.Store(ctx, info.Name)
		if err != nil {
			return nil, err
		}
		l, err := store.List(ctx, s)
		if err != nil {
			return nil, err
		}
		list = append(list, kept{info.Name, info.Space, s, l.Snapshots, l.Fault})
	}
	return list, nil
}

// listSnapshots prints the snapshots that there are, best first.
func (c *config) listSnapshots(list []kept) error {
	if c.json {
		type entry struct {
			Stream    string `json:"stream"`
			Model     string `json:"model"`
			BlockSize uint32 `json:"block_size"`
			Group     string `json:"group"`
			Listed    bool   `json:"listed"` // in the manifest
			store.Entry
		}
		all := []entry{}
		for _, k := range list {
			for _, f := range k.snapshots {
				all = append(all, entry{k.stream, k.space.Model, k.space.BlockSize, k.space.Group, f.Listed, f.Entry})
			}
		}
		return c.print(map[string]any{"snapshots": all})
	}
	w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tPOSITION\tBLOCKS\tBYTES\tAGE\tWRITER\tSTREAM")
	for _, k := range list {
		for _, f := range k.snapshots {
			if !f.Listed { // it says the rest itself
				fmt.Fprintf(w, "%s\t%d\t?\t?\t?\t(not in the manifest)\t%s\n", f.Name, f.Seq, k.stream)
				continue
			}
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%s\t%s\n", f.Name, f.Seq, f.Blocks, f.Bytes, c.now().Sub(f.Written).Round(time.Second), f.Writer, k.stream)
		}
		if k.fault != nil {
			fmt.Fprintf(w, "(%v)\t\t\t\t\t\t%s\n", k.fault, k.stream)
		}
	}
	return w.Flush()
}

// done says what was done with a snapshot.
func (c *config) done(name, verb, text string) error {
	if c.json {
		return c.print(map[string]any{"snapshot": name, "done": verb})
	}
	_, err := fmt.Fprintln(c.out, text)
	return err
}

func checkName(name string) error {
	if err := store.CheckName(name); err != nil {
		return fmt.Errorf("%w; kvctl snapshot list names them: %w", err, errUse)
	}
	return nil
}

// find returns the stream that has the snapshot.
func find(list []kept, name string) (kept, error) {
	if err := checkName(name); err != nil {
		return kept{}, err
	}
	var found []kept
	for _, k := range list {
		if slices.ContainsFunc(k.snapshots, func(f store.Found) bool { return f.Name == name }) {
			found = append(found, k)
		}
	}
	switch len(found) {
	case 0:
		return kept{}, fmt.Errorf("%w: %s", store.ErrNotFound, name)
	case 1:
		return found[0], nil
	}
	return kept{}, fmt.Errorf("%d streams have a snapshot %s: say which by --model, --block-size or --stream, as kvctl snapshot list has it: %w", len(found), name, errUse)
}

// show prints what a snapshot says of itself: after its checksums, or, to
// verify, all that is in it.
func (c *config) show(verb, name string, f io.Reader) error {
	read := snapshot.Check
	if verb == "verify" {
		read = snapshot.Verify
	}
	info, err := read(f)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if verb == "inspect" {
		return c.print(map[string]any{"snapshot": name, "meta": info.Meta, "footer": info.Footer, "bytes": info.Bytes})
	}
	return c.done(name, verb, fmt.Sprintf("%s is whole: %d blocks in %d runs, %d bytes, digest %016x", name, info.Footer.Blocks, info.Footer.Runs, info.Bytes, info.Footer.Digest))
}

// copySnapshot verifies a snapshot and copies it to a directory that a program
// can be started with as --snapshot-dir.
func (c *config) copySnapshot(ctx context.Context, k *keeper.Keeper, at kept, name, dir string) error {
	f, err := at.store.Open(ctx, name)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it is only read
	if _, err := snapshot.Verify(f); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	to, err := store.OpenDir(dir, at.stream, nil)
	if err != nil {
		return err
	}
	if err := to.Put(ctx, name, func(w io.Writer) error { _, err := io.Copy(w, f); return err }); err != nil {
		return err
	}
	if _, err := store.Claim(ctx, to, "kvctl", k.Readmit(to, at.stream, at.space)); err != nil {
		return err
	}
	m, _, err := to.Manifest(ctx)
	if err == nil && !slices.ContainsFunc(m.Snapshots, func(e store.Entry) bool { return e.Name == name }) {
		err = fmt.Errorf("%s is not the snapshot of stream %s that its name says: %w", name, at.stream, errRefused)
	}
	if err != nil {
		return err
	}
	return c.done(name, "restore", fmt.Sprintf("%s is in %s: start with --snapshot-dir %s", name, to, dir))
}

// deleteSnapshot takes a snapshot out of the manifest and deletes it.
func (c *config) deleteSnapshot(ctx context.Context, k *keeper.Keeper, at kept, name string) error {
	if newest := at.snapshots[0].Name == name; newest && !c.force {
		return fmt.Errorf("%s is the newest of its stream, and the next start would read the stream from where the one before ends; --force deletes it: %w", name, errRefused)
	}
	fence, err := store.Claim(ctx, at.store, "kvctl", k.Readmit(at.store, at.stream, at.space))
	if err != nil {
		return err
	}
	if err := store.Forget(ctx, at.store, fence, func(e store.Entry) bool { return e.Name == name }); err != nil {
		return err
	}
	if err := at.store.Delete(ctx, name); err != nil {
		return err
	}
	return c.done(name, "delete", name+" is deleted")
}

var errRefused = errors.New("refused")
