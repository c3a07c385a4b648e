package proxy

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/kvatlas/kvatlas/internal/router/spool"
)

// maxWindow bounds how far back a zstd body may refer, which a decoder keeps in
// memory: what RFC 8878 wants every decoder to have.
const maxWindow = 8 << 20

// decode puts what a compressed body says in its place: engines read plain ones. The
// body has arrived whole by then, so that nobody holds a decoder by being slow.
func (p *Proxy) decode(r *http.Request, q *call) *refusal {
	how := strings.ToLower(strings.Join(r.Header.Values("Content-Encoding"), ","))
	if how == "" || how == "identity" || q.spooled == nil {
		r.Header.Del("Content-Encoding")
		return nil
	}
	select {
	case p.decoding <- struct{}{}:
		defer func() { <-p.decoding }()
	case <-r.Context().Done():
		return refuse(499, "client_gone", "the client is gone")
	}
	in, done, err := decoder(how, bytes.NewReader(q.data))
	if err != nil {
		return badEncoding()
	}
	if in == nil {
		return refuse(http.StatusUnsupportedMediaType, "unsupported_encoding", "the router reads bodies that are plain, gzip or zstd")
	}
	defer done()
	plain := p.spool.Open(q.client(r), func() {}, false) // it waits for nobody: it notices
	if err := plain.Fill(in, -1, p.cfg.MaxBody); err != nil {
		plain.Release()
		if errors.Is(err, zstd.ErrDecoderSizeExceeded) {
			err = spool.ErrTooLarge
		}
		if no := p.notRead(err); no.reason != "body" {
			return no
		}
		return badEncoding()
	}
	q.spooled.Release()
	q.spooled, q.data = plain, plain.Bytes()
	r.Header.Del("Content-Encoding")
	return nil
}

func badEncoding() *refusal {
	return refuse(http.StatusBadRequest, "malformed_encoding", "the body is not what its Content-Encoding says, or refers back by more than 8 MiB")
}

var (
	gzips sync.Pool // of *gzip.Reader
	zstds sync.Pool // of *zstd.Decoder
)

// decoder returns a reader of what the compressed text says, to be done with after
// its use; nil for an encoding that is not known.
func decoder(how string, text io.Reader) (in io.Reader, done func(), err error) {
	switch how {
	case "gzip", "x-gzip":
		z, ok := gzips.Get().(*gzip.Reader)
		if !ok {
			z = new(gzip.Reader)
		}
		return z, func() { gzips.Put(z) }, z.Reset(text)
	case "zstd":
		z, ok := zstds.Get().(*zstd.Decoder)
		if !ok {
			if z, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow)); err != nil {
				return nil, nil, err
			}
		}
		done = func() {
			_ = z.Reset(nil) // lets go of the body
			zstds.Put(z)
		}
		return z, done, z.Reset(text)
	}
	return nil, nil, nil
}
