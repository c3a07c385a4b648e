package query

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/valyala/fasthttp"

	"github.com/kvatlas/kvatlas/internal/program/edge"
)

// inflater takes the compression off bodies, up to a limit of what comes out.
type inflater struct {
	limit int64
	zstd  *zstd.Decoder
	gzips sync.Pool // of *gunzipper
}

// gunzipper is a gzip.Reader and what it reads, which is a request's only while it does.
type gunzipper struct {
	gzip.Reader
	body bytes.Reader
}

var errTooLarge = errors.New("more than may come out of a compressed body")

func newInflater(limit int64) (*inflater, error) {
	// The window is memory that a few bytes of a header can ask for; DecodeAll
	// runs on the caller's goroutine.
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(uint64(limit)),
		zstd.WithDecoderMaxWindow(max(uint64(limit), zstd.MinWindowSize)), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	return &inflater{limit: limit, zstd: d}, nil
}

func (f *inflater) unzstd(body []byte) ([]byte, error) {
	out, err := f.zstd.DecodeAll(body, nil)
	if errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, zstd.ErrWindowSizeExceeded) {
		return nil, errTooLarge
	}
	return out, err
}

func (f *inflater) gunzip(body []byte) ([]byte, error) {
	z, ok := f.gzips.Get().(*gunzipper)
	if !ok {
		z = new(gunzipper)
	}
	defer f.gzips.Put(z)
	return z.gunzip(body, f.limit)
}

func (z *gunzipper) gunzip(body []byte, limit int64) ([]byte, error) {
	z.body.Reset(body)
	defer z.body.Reset(nil)
	if err := z.Reset(&z.body); err != nil {
		return nil, err
	}
	out, err := io.ReadAll(io.LimitReader(z, limit+1))
	if int64(len(out)) > limit {
		return nil, errTooLarge
	}
	return out, err
}

// decompressed returns the request's body as it was before its compression.
func (s *Server) decompressed(ctx *fasthttp.RequestCtx) (body []byte, p *edge.Problem) {
	body = ctx.Request.Body()
	encoding := ctx.Request.Header.ContentEncoding()
	if len(encoding) == 0 {
		return body, nil
	}
	var err error
	switch strings.ToLower(string(encoding)) {
	case "identity":
		return body, nil
	case "gzip":
		body, err = s.inflate.gunzip(body)
	case "zstd":
		body, err = s.inflate.unzstd(body)
	default:
		ctx.Response.Header.Set("Accept-Encoding", "gzip, zstd")
		return nil, edge.Refuse(fasthttp.StatusUnsupportedMediaType, "Content-Encoding", edge.Encoding, "send the body with gzip, zstd or uncompressed")
	}
	switch {
	case errors.Is(err, errTooLarge):
		return nil, edge.Refuse(fasthttp.StatusRequestEntityTooLarge, "body", edge.BodyTooLarge,
			fmt.Sprintf("the body has more than %d bytes without its compression (--http-max-decompressed)", s.cfg.MaxDecompressed))
	case err != nil:
		return nil, edge.Bad("body", edge.MalformedEncoding, "not "+string(encoding)+": "+err.Error())
	}
	return body, nil
}
