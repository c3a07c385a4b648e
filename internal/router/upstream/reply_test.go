package upstream

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

// replyTo reads an answer as a conn does, if it is of the usual kind.
func replyTo(text string) (*http.Response, bool) {
	k := &conn{in: bufio.NewReaderSize(strings.NewReader(text), readBuffer)}
	x := NewExchange(context.Background())
	before, _ := x.reply(2)
	before.Header.Set("Old", "of the one before")
	before.ContentLength, before.TransferEncoding = 7, []string{"chunked"}
	resp, ok, err := k.reply(&http.Request{Method: http.MethodGet}, x)
	if err != nil || !ok {
		return nil, false
	}
	if resp.Body = io.NopCloser(&sized{k.in, resp.ContentLength}); resp.ContentLength < 0 {
		resp.Body = io.NopCloser(newPieces(k.in))
	}
	return resp, true
}

// FuzzReply holds answers of the usual kind to what net/http makes of them.
func FuzzReply(f *testing.F) {
	for text, usual := range map[string]bool{
		"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\ncontent-length: 5\r\n\r\nhello":              true,
		"HTTP/1.1 500 \r\nA: b\r\nX: y\r\na:  c \r\nContent-Length: 0\r\n\r\n":                             true,
		"HTTP/1.1 200\nTransfer-Encoding: chunked\nConnection: keep-alive\n\n5;x\r\nhello\r\n0\r\n\r\n":    true,
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel":                                                  true,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n":                         true,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\n\r\n":             true,
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello":                   false,
		"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello":                           false,
		"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello":                                                false,
		"HTTP/1.1 200 OK\r\n\r\nhello":                                                                     false,
		"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n":                                             false,
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n":              false,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n":     false,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n":                                               false,
		"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello":                                               false,
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello":                           false,
		"HTTP/1.1 200 OK\r\nA: b\r\n c\r\nContent-Length: 5\r\n\r\nhello":                                  false,
		"HTTP/1.1 200 OK\r\nA: b\x00\r\nContent-Length: 5\r\n\r\nhello":                                    false,
		"HTTP/1.1 200 OK\r\nLong: " + strings.Repeat("long", 8<<10) + "\r\nContent-Length: 5\r\n\r\nhello": false,
		"HTTP/1.1 200 OK\r\nTrailer: A\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n\r\n":             false,
		"HTTP/1.1 20 OK\r\nContent-Length: 5\r\n\r\nhello":                                                 false,
	} {
		if _, ok := replyTo(text); ok != usual {
			f.Errorf("%.200q: usual is %v", text, ok)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ours, ok := replyTo(text)
		if !ok {
			return
		}
		theirs, err := http.ReadResponse(bufio.NewReader(strings.NewReader(text)), &http.Request{Method: http.MethodGet})
		if err != nil {
			t.Fatalf("%q: net/http says %v", text, err)
		}
		body, ourErr := io.ReadAll(ours.Body)
		want, theirErr := io.ReadAll(theirs.Body)
		if ourErr == nil && (theirErr != nil || string(body) != string(want)) || ourErr != nil && theirErr == nil && !errors.Is(ourErr, errTrailers) {
			t.Fatalf("%q: the body is %q, %v, for net/http %q, %v", text, body, ourErr, want, theirErr)
		}
		ours.Body, theirs.Body, ours.Request, theirs.Request, theirs.Trailer = nil, nil, nil, nil, nil
		if !reflect.DeepEqual(ours, theirs) {
			t.Fatalf("%q: it is\n%+v, for net/http\n%+v", text, ours, theirs)
		}
	})
}
