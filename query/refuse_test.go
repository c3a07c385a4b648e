package query

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

func TestBadRequestsAreRefusedAndCountedAndChangeNothing(t *testing.T) {
	ix := twoSpaces()
	s := serve(t, ix, testConfig(t, "--http-max-body=2KiB", "--http-max-tokens=20"))
	_, before := s.do(t, "GET", "/v1/workers", "")
	const find = "/v1/find_matches"
	tests := []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		field, reason            string
	}{
		{name: "empty body", body: ``, status: 400, field: "body", reason: "malformed_json"},
		{name: "malformed", body: `{"model":"m",`, status: 400, field: "body", reason: "malformed_json"},
		{name: "an array", body: `[1]`, status: 400, field: "body", reason: "wrong_type"},
		{name: "null", body: `null`, status: 400, field: "body", reason: "wrong_type"},
		{name: "trailing text", body: `{"model":"m","hashes":[1]} x`, status: 400, field: "body", reason: "malformed_json"},
		{name: "invalid UTF-8", body: "{\"model\":\"\xff\",\"hashes\":[1]}", status: 400, field: "model", reason: "malformed_json"},
		{name: "deep", body: `{"model":"m","hashes":` + strings.Repeat("[", 500), status: 400, field: "hashes[0]", reason: "wrong_type"},
		{name: "unknown field", body: `{"model":"m","hash":[1]}`, status: 400, field: "hash", reason: "unknown_field"},
		{name: "field in other case", body: `{"Model":"m"}`, status: 400, field: "Model", reason: "unknown_field"},
		{name: "duplicate field", body: `{"model":"m","model":"m"}`, status: 400, field: "model", reason: "duplicate_field"},
		{name: "model is a number", body: `{"model":1}`, status: 400, field: "model", reason: "wrong_type"},
		{name: "hashes are an object", body: `{"model":"m","hashes":{}}`, status: 400, field: "hashes", reason: "wrong_type"},
		{name: "hash is a bool", body: `{"model":"m","hashes":[1,true]}`, status: 400, field: "hashes[1]", reason: "wrong_type"},
		{name: "hash is null", body: `{"model":"m","hashes":[null]}`, status: 400, field: "hashes[0]", reason: "wrong_type"},
		{name: "hash is negative", body: `{"model":"m","hashes":[1,2,-3]}`, status: 400, field: "hashes[2]", reason: "negative"},
		{name: "hash is a negative text", body: `{"model":"m","hashes":["-3"]}`, status: 400, field: "hashes[0]", reason: "negative"},
		{name: "hash is a float", body: `{"model":"m","hashes":[1.5]}`, status: 400, field: "hashes[0]", reason: "not_integer"},
		{name: "hash is a whole float", body: `{"model":"m","hashes":[1.0]}`, status: 400, field: "hashes[0]", reason: "not_integer"},
		{name: "hash has an exponent", body: `{"model":"m","hashes":[1e3]}`, status: 400, field: "hashes[0]", reason: "not_integer"},
		{name: "hash is a word", body: `{"model":"m","hashes":["abc"]}`, status: 400, field: "hashes[0]", reason: "not_integer"},
		{name: "hash is 2^64", body: `{"model":"m","hashes":[18446744073709551616]}`, status: 400, field: "hashes[0]", reason: "out_of_range"},
		{name: "hash before others is 2^64", body: `{"model":"m","hashes":[1,18446744073709551616,2]}`, status: 400, field: "hashes[1]", reason: "out_of_range"},
		{name: "hash before others is 10^20-1", body: `{"model":"m","hashes":[99999999999999999999,2]}`, status: 400, field: "hashes[0]", reason: "out_of_range"},
		{name: "hash is 2^64 as text", body: `{"model":"m","hashes":[7,"18446744073709551616"]}`, status: 400, field: "hashes[1]", reason: "out_of_range"},
		{name: "hash has a leading zero", body: `{"model":"m","hashes":[01]}`, status: 400, field: "body", reason: "malformed_json"},
		{name: "token is 2^32", body: `{"model":"m","token_ids":[1,4294967296]}`, status: 400, field: "token_ids[1]", reason: "out_of_range"},
		{name: "token is negative", body: `{"model":"m","token_ids":[-1]}`, status: 400, field: "token_ids[0]", reason: "negative"},
		{name: "token is a text", body: `{"model":"m","token_ids":["1"]}`, status: 400, field: "token_ids[0]", reason: "wrong_type"},
		{name: "too many tokens", body: `{"model":"m","token_ids":[` + strings.Repeat("1,", 20) + `1]}`, status: 400, field: "token_ids", reason: "too_many"},
		{name: "too many hashes", body: `{"model":"m","hashes":[` + strings.Repeat("1 ,", 20) + `1]}`, status: 400, field: "hashes", reason: "too_many"},
		{name: "no model", body: `{"hashes":[1]}`, status: 400, field: "model", reason: "missing"},
		{name: "null model", body: `{"model":null,"hashes":[1]}`, status: 400, field: "model", reason: "missing"},
		{name: "neither", body: `{"model":"m"}`, status: 400, field: "token_ids", reason: "missing"},
		{name: "both", body: `{"model":"m","hashes":[1],"token_ids":[1]}`, status: 400, field: "hashes", reason: "conflict"},
		{name: "hashes and LoRA", body: `{"model":"m","hashes":[1],"lora_name":"l"}`, status: 400, field: "lora_name", reason: "conflict"},
		{name: "hashes and salt", body: `{"model":"m","hashes":[1],"cache_salt":"s"}`, status: 400, field: "cache_salt", reason: "conflict"},
		{name: "long model", body: `{"hashes":[1],"model":"` + strings.Repeat("m", 1025) + `"}`, status: 400, field: "model", reason: "out_of_range"},
		{name: "block size 0", body: `{"model":"m","hashes":[1],"block_size":0}`, status: 400, field: "block_size", reason: "out_of_range"},
		{name: "block size 1025", body: `{"model":"m","hashes":[1],"block_size":1025}`, status: 400, field: "block_size", reason: "out_of_range"},
		{name: "block size is a text", body: `{"model":"m","hashes":[1],"block_size":"2"}`, status: 400, field: "block_size", reason: "wrong_type"},
		{name: "block size mismatch", body: `{"model":"m","hashes":[1],"block_size":16}`, status: 400, field: "block_size", reason: "block_size_mismatch"},
		{name: "block size of another group", body: `{"model":"m","hashes":[1],"block_size":4,"group":""}`, status: 400, field: "block_size", reason: "block_size_mismatch"},
		{name: "no blocks", body: `{"model":"m","hashes":[1],"max_blocks":0}`, status: 400, field: "max_blocks", reason: "out_of_range"},
		{name: "unknown model", body: `{"model":"x","hashes":[1]}`, status: 404, field: "model", reason: "unknown_model"},
		{name: "unknown group", body: `{"model":"m","group":"x","hashes":[1]}`, status: 404, field: "group", reason: "unknown_group"},
		{name: "body over the limit", body: strings.Repeat(" ", 2049), status: 413, field: "body", reason: "body_too_large"},
		{name: "compressed", body: `{}`, headers: []string{"Content-Encoding", "br"}, status: 415, field: "Content-Encoding", reason: "unsupported_encoding"},
		{name: "not gzip", body: `{}`, headers: []string{"Content-Encoding", "gzip"}, status: 400, field: "body", reason: "malformed_encoding"},
		{name: "not zstd", body: `{}`, headers: []string{"Content-Encoding", "zstd"}, status: 400, field: "body", reason: "malformed_encoding"},
		{name: "binary", path: "/v1/explain", body: `{}`, headers: []string{"Content-Type", "application/octet-stream"}, status: 415, field: "Content-Type", reason: "unsupported_media_type"},
		{name: "half a hash", path: find + "?model=m", body: `1234567`, headers: []string{"Content-Type", "application/octet-stream"}, status: 400, field: "body", reason: "out_of_range"},
		{name: "argument", path: find + "?model=m", body: `{}`, status: 400, field: "model", reason: "unknown_argument"},
		{name: "argument of workers", method: "GET", path: "/v1/workers?group=g", status: 400, field: "group", reason: "unknown_argument"},
		{name: "GET find", method: "GET", status: 405, field: "method", reason: "method_not_allowed"},
		{name: "PUT find", method: "PUT", body: `{"model":"m","hashes":[1]}`, status: 405, field: "method", reason: "method_not_allowed"},
		{name: "POST workers", path: "/v1/workers", status: 405, field: "method", reason: "method_not_allowed"},
		{name: "DELETE metrics", method: "DELETE", path: "/metrics", status: 405, field: "method", reason: "method_not_allowed"},
		{name: "unknown route", path: "/v1/find", status: 404, field: "path", reason: "unknown_route"},
		{name: "route with a slash", path: find + "/", status: 404, field: "path", reason: "unknown_route"},
		{name: "route with dots", path: "/x/.." + find, status: 404, field: "path", reason: "unknown_route"},
		{name: "route encoded", path: "/v1/find%5fmatches", status: 404, field: "path", reason: "unknown_route"},
		{name: "header over the limit", headers: []string{"X-Long", strings.Repeat("x", 9000)}, status: 431, field: "header", reason: "header_too_large"},
	}
	refused := map[string]int{}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			method, path := tc.method, tc.path
			if method == "" {
				method = "POST"
			}
			if path == "" {
				path = find
			}
			resp, data := s.do(t, method, path, tc.body, tc.headers...)
			var p problemJSON
			d := json.NewDecoder(bytes.NewReader(data))
			d.DisallowUnknownFields()
			if err := d.Decode(&p); err != nil {
				t.Fatalf("%v in %q", err, data)
			}
			if resp.StatusCode != tc.status || p.Error.Field != tc.field || p.Error.Reason != tc.reason ||
				p.Error.Message == "" || strings.HasSuffix(p.Error.Message, ",") {
				t.Errorf("got %d %+v, want %d %s %s", resp.StatusCode, p.Error, tc.status, tc.field, tc.reason)
			}
			if resp.Header.Get("Content-Type") != "application/json" || resp.Header.Get("X-Request-Id") == "" {
				t.Errorf("headers %v", resp.Header)
			}
			if tc.status == 405 && resp.Header.Get("Allow") == "" {
				t.Error("no Allow header")
			}
			refused[tc.reason]++
			if got := s.counter(fmt.Sprintf("kvatlas_http_refused_total{reason=%q}", tc.reason)); got != fmt.Sprint(refused[tc.reason]) {
				t.Errorf("counted %s refusals for %s, want %d", got, tc.reason, refused[tc.reason])
			}
		})
	}
	if _, after := s.do(t, "GET", "/v1/workers", ""); !bytes.Equal(before, after) {
		t.Errorf("the index changed from %s to %s", before, after)
	}
	if ix.finds != 0 {
		t.Errorf("%d lookups were made for bad requests", ix.finds)
	}
	// The server is as good as before.
	if resp, _ := s.do(t, "POST", find, `{"model":"m","hashes":[1]}`); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
}

// raw sends bytes as they are and returns all that comes back until the server
// closes the connection.
func (s *served) raw(t *testing.T, request string) string {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(c)
	if err != nil { // such as a reset, where the server did not read all
		t.Log(err)
	}
	return string(data)
}

func TestWhatIsNotHTTPIsAnsweredAndCounted(t *testing.T) {
	s := serve(t, twoSpaces(), testConfig(t, "--http-read-timeout=300ms", "--http-max-body=1KiB"))
	const post = "POST /v1/find_matches HTTP/1.1\r\nHost: localhost\r\n"
	for name, tc := range map[string]struct{ request, status, reason string }{
		"nonsense":        {"nonsense\r\n\r\n", "400", "malformed_request"},
		"lying length":    {post + "Content-Length: 99999999999\r\n\r\n{}", "413", "body_too_large"},
		"chunks too many": {post + "Transfer-Encoding: chunked\r\n\r\n401\r\n" + strings.Repeat(" ", 1025) + "\r\n0\r\n\r\n", "413", "body_too_large"},
		"broken chunk":    {post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n", "400", "malformed_request"},
		"two lengths":     {post + "Content-Length: 4\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "400", "malformed_request"},
		"smuggled":        {post + "Transfer-Encoding: chunked\r\nCONTENT-LENGTH: 5\r\n\r\n0\r\n\r\nGET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", "400", "malformed_request"},
		"slow body":       {post + "Content-Length: 10\r\n\r\n{", "408", "timeout"},
		"slow header":     {"POST /v1/find_matches HT", "408", "timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			answer := s.raw(t, tc.request)
			if !strings.HasPrefix(answer, "HTTP/1.1 "+tc.status+" ") || !strings.Contains(answer, `"reason":"`+tc.reason+`"`) {
				t.Errorf("got %q, want %s %s", answer, tc.status, tc.reason)
			}
			if strings.Count(answer, "X-Request-Id") != 1 {
				t.Errorf("more than one answer: %q", answer)
			}
			if s.counter(fmt.Sprintf("kvatlas_http_refused_total{reason=%q}", tc.reason)) == "0" {
				t.Error("not counted")
			}
		})
	}
}

// lateConn is a connection whose deadline for writing is noted.
type lateConn struct {
	net.Conn
	by time.Time
}

func (c *lateConn) SetWriteDeadline(t time.Time) error {
	c.by = t
	return c.Conn.SetWriteDeadline(t)
}

// Who was waited for as long as an answer may take is told so still: the deadline for writing is that of
// the answer before, or of the TLS handshake.
func TestWhoWasWaitedForIsTold(t *testing.T) {
	s := serve(t, twoSpaces(), testConfig(t))
	a, b := net.Pipe()
	defer a.Close() //nolint:errcheck // it has done its work
	defer b.Close() //nolint:errcheck // it has done its work
	c, begun := &lateConn{Conn: b}, time.Now()
	var ctx fasthttp.RequestCtx
	ctx.Init2(c, nil, false)
	if s.handleBroken(&ctx, os.ErrDeadlineExceeded); ctx.Response.StatusCode() != 408 || c.by.Before(begun.Add(s.cfg.WriteTimeout)) {
		t.Errorf("%d, to be written by %v", ctx.Response.StatusCode(), c.by)
	}
}
