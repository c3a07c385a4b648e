package picker

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/kvatlas/kvatlas/internal/extproc"
	"github.com/kvatlas/kvatlas/internal/router/proxy"
)

// spoiled is a pool that gives out first what came back last, with none of what was in it.
type spoiled struct {
	mem.BufferPool
	mu   sync.Mutex
	back map[int][]*[]byte // by capacity
}

func (p *spoiled) Get(n int) *[]byte {
	fresh := p.BufferPool.Get(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.back[cap(*fresh)]
	if len(list) == 0 {
		return fresh
	}
	b := list[len(list)-1]
	p.back[cap(*fresh)] = list[:len(list)-1]
	*b = (*b)[:n]
	return b
}

func (p *spoiled) Put(b *[]byte) {
	all := (*b)[:cap(*b)]
	for i := range all {
		all[i] = 0xEE
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.back[cap(all)] = append(p.back[cap(all)], b)
}

// No buffer goes back while somebody reads it, of several requests at once.
func TestNothingIsReadThatWasGivenBack(t *testing.T) {
	was := extproc.Pool
	extproc.Pool = &spoiled{BufferPool: was, back: make(map[int][]*[]byte)}
	t.Cleanup(func() { extproc.Pool = was })
	t.Run("all", func(t *testing.T) { // until its servers have ended
		var all sync.WaitGroup
		for i, size := range []int{1, 900, 70_000, 300_000} {
			body, answer := filled(size, i), filled(size/2+1, i+100)
			heard := make(chan []byte, 1)
			stream, _ := serving(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
				all, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				r = r.Clone(r.Context())
				r.ContentLength, r.Body = int64(len(all)), io.NopCloser(bytes.NewReader(all))
				resp, _, err := w.(proxy.Gateway).HandOn(r, proxy.Picked{Endpoints: []string{"10.0.0.1:8000"}})
				if err != nil {
					t.Error(err)
					heard <- nil
					return
				}
				all, err = io.ReadAll(resp.Body)
				if err != nil {
					t.Error(err)
				}
				heard <- append(all, r.Header.Get("x-a")+resp.Header.Get("x-a")...)
			})
			all.Go(func() {
				name := fmt.Sprint(size)
				if err := whole(stream, name, body, answer); err != nil {
					t.Error(size, err)
				} else if got := <-heard; !bytes.Equal(got, append(answer, name+name...)) {
					t.Error(size, "the handler has another answer")
				}
			})
		}
		all.Wait()
	})
}

// filled returns n bytes that say where they are.
func filled(n, with int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i + i>>8 + with*37)
	}
	return b
}

// whole is one exchange, in parts of 10,000 bytes, with headers x-a.
func whole(stream grpc.ClientStream, name string, body, answer []byte) error {
	send := func(kind extproc.Kind, head []extproc.Header, body []byte) error {
		err := stream.SendMsg(&extproc.Request{Kind: kind, Headers: append(head, extproc.Header{Name: "x-a", Value: name}), HasModes: kind == extproc.RequestHeaders,
			RequestMode: extproc.ModeFullDuplex, ResponseMode: extproc.ModeFullDuplex})
		for len(body) > 0 && err == nil {
			n := min(len(body), 10_000)
			err = stream.SendMsg(&extproc.Request{Kind: kind + 1, Body: body[:n], End: n == len(body)})
			body = body[n:]
		}
		return err
	}
	hear := func(body []byte) error {
		var m extproc.Response
		for at := 0; at < len(body); m.Release() {
			if err := stream.RecvMsg(&m); err != nil {
				return err
			}
			if at += len(m.Body); at > len(body) || !bytes.Equal(m.Body, body[at-len(m.Body):at]) {
				return errors.New("another body")
			}
		}
		return nil
	}
	err := send(extproc.RequestHeaders, []extproc.Header{{Name: ":method", Value: "POST"}, {Name: ":path", Value: "/v1/completions"}}, body)
	if err == nil {
		err = hear(body)
	}
	if err == nil {
		err = send(extproc.ResponseHeaders, []extproc.Header{{Name: ":status", Value: "200"}}, answer)
	}
	if err == nil {
		err = hear(answer)
	}
	return errors.Join(err, stream.CloseSend())
}
