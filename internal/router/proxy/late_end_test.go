package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// An end that comes long after the last part, longer than a client has for what is written, is the answer's all the same.
func TestAnEndThatIsLate(t *testing.T) {
	const within = 50 * time.Millisecond
	s := setup{proxy: func(c *Config) { c.WriteTimeout = within }}
	const said = "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n"
	server(t, &s, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, text := range []string{strings.Repeat(said, 4), "data: [DONE]\n\n"} {
			_, _ = io.WriteString(w, text) // the router reads all
			_ = http.NewResponseController(w).Flush()
			select {
			case <-time.After(4 * within):
			case <-r.Context().Done():
			}
		}
	})
	l := newLab(t, s)
	body := strings.Replace(short, "}", `,"stream":true}`, 1)
	ask := func(version string) error {
		c, err := net.Dial("tcp", strings.TrimPrefix(l.front.URL, "http://")) //nolint:noctx // the front is near
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() //nolint:errcheck // it was only read
		if _, err := fmt.Fprintf(c, "POST /v1/completions HTTP/%s\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", version, len(body), body); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return err
		}
		if data, err := io.ReadAll(resp.Body); err != nil || string(data) != strings.Repeat(said, 4)+"data: [DONE]\n\n" {
			return fmt.Errorf("%q, %w", data, err)
		}
		return nil
	}
	for _, version := range []string{"1.1", "1.0"} {
		// Where the machine stands still, the router itself may take longer to write: not each time.
		err := ask(version)
		for again := 0; again < 9 && err != nil; again++ {
			err = ask(version)
		}
		if err != nil {
			t.Errorf("HTTP/%s: %v", version, err)
		}
	}
}
