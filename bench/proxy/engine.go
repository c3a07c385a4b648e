package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// engine answers chats at once and costs as little as can be: it shares the processors
// with what is measured. It knows no more of HTTP than the clients at hand need.
type engine struct {
	listener net.Listener
	events   *events // nil: it publishes nothing
	words    *words  // nil: tokens are made of bytes
	chunks   int
	pause    time.Duration // before each chunk but the first
}

// startEngine serves until the listener is closed.
func startEngine(ctx context.Context, e *engine) (address string, err error) {
	if e.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return "", err
	}
	go func() { // ends with the listener
		for {
			c, err := e.listener.Accept()
			if err != nil {
				return
			}
			go e.serve(c) // ends with the connection
		}
	}()
	return e.listener.Addr().String(), nil
}

func (e *engine) serve(c net.Conn) {
	defer c.Close() //nolint:errcheck // nothing is lost
	x := &exchange{engine: e, conn: c, in: bufio.NewReaderSize(c, 32<<10)}
	for x.one() == nil {
	}
}

// exchange is one connection, with what its last request left to be used again.
type exchange struct {
	engine *engine
	conn   net.Conn
	in     *bufio.Reader
	path   []byte
	body   []byte
	out    []byte
	text   tokenText
	tokens prompts
}

var errRequest = errors.New("not a request that this engine knows")

// one answers a request.
func (x *exchange) one() error {
	line, err := x.in.ReadSlice('\n')
	if err != nil {
		return err
	}
	_, rest, ok := bytes.Cut(line, []byte(" "))
	if !ok {
		return errRequest
	}
	path, _, _ := bytes.Cut(rest, []byte(" "))
	x.path = append(x.path[:0], path...)
	length := 0
	for {
		if line, err = x.in.ReadSlice('\n'); err != nil {
			return err
		}
		if line = bytes.TrimRight(line, "\r\n"); len(line) == 0 {
			break
		}
		if name, value, _ := bytes.Cut(line, []byte(":")); len(name) == 14 && bytes.EqualFold(name, []byte("content-length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil || length < 0 || length > 1<<24 {
				return errRequest
			}
		}
	}
	if cap(x.body) < length {
		x.body = make([]byte, 2*length)
	}
	x.body = x.body[:length]
	if _, err := io.ReadFull(x.in, x.body); err != nil {
		return err
	}
	return x.answer()
}

const whole = `{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":` +
	`{"role":"assistant","content":"Hello there, how can I help?"},"finish_reason":"stop"}],` +
	`"usage":{"prompt_tokens":2500,"completion_tokens":8,"total_tokens":2508}}`

const models = `{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"x"}]}`

const chunk = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}` + "\n\n"

func (x *exchange) answer() error {
	switch string(x.path) {
	case "/v1/chat/completions":
		if err := x.hold(); err != nil {
			return err
		}
		if bytes.Contains(x.body[max(0, len(x.body)-64):], []byte(`"stream":true`)) {
			return x.stream()
		}
		return x.send(whole)
	case "/tokenize":
		if x.engine.words != nil {
			return x.sendTokens()
		}
		x.out = x.text.answer(x.out[:0], x.body)
		_, err := x.conn.Write(x.out)
		return err
	case "/v1/models":
		return x.send(models)
	}
	return x.send("{}")
}

// hold publishes what the engine holds now.
func (x *exchange) hold() error {
	switch e := x.engine; {
	case e.events == nil:
	case e.words == nil:
		e.events.holds(x.body)
	default:
		tokens, err := x.tokens.of(context.Background(), e.words, x.body)
		if err != nil {
			return err
		}
		e.events.holds(tokens)
	}
	return nil
}

// sendTokens answers what the router compares its own tokens with.
func (x *exchange) sendTokens() error {
	ids, err := x.engine.words.whole.Prompt(context.Background(), x.body)
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"count": len(ids), "max_model_len": 131072, "tokens": ids})
	if err != nil {
		return err
	}
	return x.send(string(body))
}

func (x *exchange) send(body string) error {
	x.out = fmt.Appendf(x.out[:0], "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(body))
	x.out = append(x.out, body...)
	_, err := x.conn.Write(x.out)
	return err
}

func (x *exchange) stream() error {
	x.out = append(x.out[:0], "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"...)
	begun := time.Now()
	for i := range x.engine.chunks {
		if i > 0 && x.engine.pause > 0 {
			time.Sleep(time.Until(begun.Add(time.Duration(i) * x.engine.pause)))
		}
		x.out = fmt.Appendf(x.out, "%x\r\n%s\r\n", len(chunk), chunk)
		if _, err := x.conn.Write(x.out); err != nil {
			return err
		}
		x.out = x.out[:0]
	}
	_, err := io.WriteString(x.conn, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
	return err
}

// bytesPerToken of a body are a token, which is made of them alone: what requests share
// at their beginning they share as tokens.
const bytesPerToken = 4

func token(b []byte) uint32 {
	return (uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24) * 2654435761 >> 8 % 128000
}

// tokenText writes answers of /tokenize. It keeps the last one, as most of the next is
// the same.
type tokenText struct {
	body []byte
	text []byte
	ends []int // of each token in text
}

func (t *tokenText) answer(dst, body []byte) []byte {
	same := 0
	for same < min(len(t.body), len(body)) && t.body[same] == body[same] {
		same++
	}
	n := min(same/bytesPerToken, len(t.ends))
	if t.ends = t.ends[:n]; n > 0 {
		t.text = t.text[:t.ends[n-1]]
	} else {
		t.text = t.text[:0]
	}
	for at := n * bytesPerToken; at+bytesPerToken <= len(body); at += bytesPerToken {
		if at > 0 {
			t.text = append(t.text, ',')
		}
		t.text = strconv.AppendUint(t.text, uint64(token(body[at:])), 10)
		t.ends = append(t.ends, len(t.text))
	}
	t.body = append(t.body[:0], body...)
	const head, tail = `{"count":1,"max_model_len":131072,"tokens":[`, `]}`
	dst = fmt.Appendf(dst, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(head)+len(t.text)+len(tail), head)
	return append(append(dst, t.text...), tail...)
}
