package query

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/klauspost/compress/zstd"
	"github.com/valyala/fasthttp"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/shard"
	"github.com/kvatlas/kvatlas/snapshot/dump"
)

// At calls queue at a moment at which no event of the space is on its way to
// the index, then wait, and returns how far the space's events were read.
type At func(ctx context.Context, sp event.Space, queue func() error, wait func()) (dump.Position, error)

// dumps counts the dumps of a Server. It is safe for concurrent use.
type dumps struct {
	running                atomic.Int64
	complete, left, failed *metrics.Counter
	blocks, ranks          *metrics.Counter
}

func newDumps(m *obs.Metrics) *dumps {
	const name, help = "kvatlas_dumps_total", "Dumps, by result: complete, client_left or failed."
	d := &dumps{
		complete: m.Counter(name, help, "result", "complete"),
		left:     m.Counter(name, help, "result", "client_left"),
		failed:   m.Counter(name, help, "result", "failed"),
		blocks:   m.Counter("kvatlas_dump_blocks_total", "Blocks of the ranks that were dumped."),
		ranks:    m.Counter("kvatlas_dump_ranks_total", "Ranks that were dumped."),
	}
	m.Gauge("kvatlas_dumps_running", "Dumps that are being answered.", func() float64 { return float64(d.running.Load()) })
	return d
}

// dumpStream is the body of a dump, made as it is read: a rank is copied when
// the ones before it are with the client. fasthttp reads it from the goroutine
// that serves the connection, and closes it in the end or when the client left.
type dumpStream struct {
	s     *Server
	conn  net.Conn
	sp    event.Space
	space Space
	from  dump.Header
	ranks []shard.RankID // still to come
	rank  []shard.Dumped // of ranks[0], still to come
	at    *dump.Publisher
	begun bool // ranks[0] is copied

	w      *dump.Writer
	packer *zstd.Encoder // nil: as it is
	ready  bytes.Buffer  // for the client
	ended  bool          // everything is in ready
	err    error
}

// schemeOf says how the local hashes of the space are made; where some cover the token
// after their block, that.
func schemeOf(sp event.Space, space Space) string {
	if space.Eagle() {
		return registry.EagleScheme(sp.BlockSize)
	}
	return registry.Scheme(sp.BlockSize)
}

// answerDump answers GET /v1/dump?model=…&block_size=…&group=…&cursor=….
func (s *Server) answerDump(ctx *fasthttp.RequestCtx, v *view) *edge.Problem {
	if p := noArguments(ctx, "model", "block_size", "group", "cursor"); p != nil {
		return p
	}
	sp, p := dumpSpace(ctx.QueryArgs(), v.index.Spaces())
	if p != nil {
		return p
	}
	d := &dumpStream{s: s, conn: ctx.Conn(), sp: sp, space: v.index.Space(sp)}
	if d.space == nil { // gone since
		return edge.Refuse(fasthttp.StatusNotFound, "model", edge.UnknownModel, "the space is gone")
	}
	var after shard.RankID
	d.from = dump.Header{HashScheme: schemeOf(sp, d.space), Cursor: string(ctx.QueryArgs().Peek("cursor"))}
	if d.from.Cursor != "" {
		var err error
		if after, err = dump.ParseCursor(d.from.Cursor); err != nil {
			return edge.Bad("cursor", edge.OutOfRange, err.Error())
		}
	}
	if ctx.SetContentType("application/x-ndjson"); ctx.IsHead() {
		return nil // fasthttp (1.74) ends also what has no body with an empty chunk
	}
	if s.dumps.running.Add(1) > int64(s.cfg.MaxDumps) {
		s.dumps.running.Add(-1)
		ctx.Response.Header.Set("Retry-After", "10")
		return edge.Refuse(fasthttp.StatusServiceUnavailable, "request", edge.Busy, "as many dumps are under way as may be (--http-max-dumps)")
	}
	if err := d.begin(after, acceptsZstd(ctx)); err != nil {
		s.dumps.running.Add(-1)
		return edge.Failed(err)
	}
	ctx.Response.Header.Set("Vary", "Accept-Encoding")
	if d.packer != nil {
		ctx.Response.Header.SetContentEncoding("zstd")
	}
	ctx.SetBodyStream(d, -1) // which closes it, also where it is not read
	return nil
}

// dumpSpace returns the one space that the arguments name.
func dumpSpace(args *fasthttp.Args, spaces []event.Space) (found event.Space, p *edge.Problem) {
	r := findRequest{model: args.Peek("model"), group: args.Peek("group")}
	if len(r.model) == 0 {
		return found, edge.Bad("model", edge.Missing, "model is missing")
	}
	if args.Has("group") {
		r.has |= fieldGroup
	}
	if args.Has("block_size") {
		n, err := strconv.ParseUint(string(args.Peek("block_size")), 10, 32)
		if err != nil || n == 0 || n > blockhash.MaxBlockSize {
			return found, edge.Bad("block_size", edge.OutOfRange, "must be a whole number from 1 to "+strconv.Itoa(blockhash.MaxBlockSize))
		}
		r.blockSize = uint32(n)
	}
	n := 0
	for _, sp := range spaces {
		if r.asks(sp) {
			found = sp
			n++
		}
	}
	switch n {
	case 0:
		return found, r.unmatched(spaces)
	case 1:
		return found, nil
	}
	return found, edge.Bad("block_size", edge.Missing, "the model has several spaces: give block_size and group, as GET /v1/spaces has them")
}

func acceptsZstd(ctx *fasthttp.RequestCtx) bool {
	for part := range strings.SplitSeq(string(ctx.Request.Header.Peek("Accept-Encoding")), ",") {
		coding, weight, _ := strings.Cut(part, ";")
		if strings.EqualFold(strings.TrimSpace(coding), "zstd") {
			q, weighed := strings.CutPrefix(strings.TrimSpace(weight), "q=")
			f, err := strconv.ParseFloat(q, 64)
			return !weighed || err == nil && f > 0
		}
	}
	return false
}

// begin fixes which ranks the dump has, and makes its first line.
func (d *dumpStream) begin(after shard.RankID, packed bool) (err error) {
	out := io.Writer(&d.ready)
	if packed {
		// One goroutine: the encoder works while the stream is read only.
		d.packer, err = zstd.NewWriter(&d.ready, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20), zstd.WithLowerEncoderMem(true))
		if err != nil {
			return fmt.Errorf("zstd: %w", err)
		}
		out = d.packer
	}
	d.w = dump.NewWriter(out, d.sp)
	if d.from.Position, err = d.position(func(context.Context) error { return nil }, func() {}); err != nil {
		return err
	}
	var ranks []shard.RankID
	for _, h := range d.space.Ranks() { // after the position: later ones are in the stream
		ranks = append(ranks, h.RankID)
	}
	for i := range d.from.Positions { // some of which never stored a block
		ranks = append(ranks, shard.RankID{Worker: d.from.Positions[i].Worker, DPRank: d.from.Positions[i].DPRank})
	}
	slices.SortFunc(ranks, shard.RankID.Compare)
	for _, id := range slices.Compact(ranks) {
		if d.from.Cursor == "" || id.Compare(after) > 0 {
			d.ranks = append(d.ranks, id)
		}
	}
	return d.w.Header(&d.from)
}

// position calls queue and wait at a moment, and says which.
func (d *dumpStream) position(queue func(context.Context) error, wait func()) (dump.Position, error) {
	// It ends where a client would not have waited longer either.
	ctx, cancel := context.WithTimeout(context.Background(), d.s.cfg.WriteTimeout)
	defer cancel()
	if d.s.deps.At != nil {
		return d.s.deps.At(ctx, d.sp, func() error { return queue(ctx) }, wait)
	}
	if err := queue(ctx); err != nil {
		return dump.Position{}, err
	}
	wait()
	return dump.Position{}, nil
}

// Read implements io.Reader.
func (d *dumpStream) Read(p []byte) (int, error) {
	for d.ready.Len() == 0 {
		if d.ended {
			return 0, io.EOF
		}
		if d.err = d.step(); d.err != nil {
			return 0, d.err // the connection breaks: the client sees no end
		}
	}
	// The limit is for each part of the answer, not for all of it.
	if err := d.conn.SetWriteDeadline(time.Now().Add(d.s.cfg.WriteTimeout)); err != nil {
		return 0, err
	}
	return d.ready.Read(p)
}

var errDraining = errors.New("the server is about to stop")

// step writes one more event, or what comes between.
func (d *dumpStream) step() error {
	switch {
	case d.s.about.Health.Draining():
		return errDraining
	case len(d.ranks) == 0:
		d.ended = true
		err := d.w.End()
		if d.packer != nil {
			err = errors.Join(err, d.packer.Close())
		}
		return err
	case !d.begun:
		return d.copyRank()
	case len(d.rank) > 0:
		err := d.w.Event(d.ranks[0], &d.rank[0])
		d.rank[0] = shard.Dumped{} // its memory is free
		d.rank = d.rank[1:]
		return err
	}
	sum, err := d.w.Rank(d.ranks[0], d.at)
	d.s.dumps.ranks.Inc()
	d.s.dumps.blocks.AddInt64(int64(sum.Blocks))
	d.begun, d.ranks = false, d.ranks[1:]
	return err
}

// copyRank copies what the next rank holds, with the position of that moment.
func (d *dumpStream) copyRank() error {
	id := d.ranks[0]
	var begun func()
	var wait func(context.Context) ([]shard.Dumped, error)
	at, err := d.position(func(ctx context.Context) (err error) {
		begun, wait, err = d.space.BeginDump(ctx, id)
		return err
	}, func() { begun() }) // what the index refuses while it is copied is not missing in it
	if wait != nil {
		ctx, cancel := context.WithTimeout(context.Background(), d.s.cfg.WriteTimeout)
		defer cancel()
		var failed error
		d.rank, failed = wait(ctx)
		err = cmp.Or(err, failed)
	}
	if err != nil {
		return err
	}
	d.at, d.begun = at.Of(id), true
	return nil
}

// Close implements io.Closer.
func (d *dumpStream) Close() error {
	d.s.dumps.running.Add(-1)
	d.rank = nil
	switch {
	case d.err != nil:
		d.s.dumps.failed.Inc()
		d.s.limit.Warn("dump", "a dump was broken off", slog.String("model", d.sp.Model), slog.Any("error", d.err))
	case d.ended && d.ready.Len() == 0:
		d.s.dumps.complete.Inc()
	default:
		d.s.dumps.left.Inc()
	}
	if d.packer != nil && !d.ended {
		d.packer.Reset(nil) // it is not to be closed: nobody takes the rest
	}
	return nil
}
