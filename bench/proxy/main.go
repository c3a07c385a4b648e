// Command proxy is what kvrouter's cost is measured against: engines that answer
// chats at once, with one small answer or with a stream of chunks, so that a
// direct connection shows the harness's own ceiling. run.sh uses it.
package main

import (
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:9300", "address of the first engine; the others have the ports that follow")
	count := flag.Int("engines", 4, "how many")
	chunks := flag.Int("chunks", 20, "of a streamed answer")
	flag.Parse()
	if err := serve(*listen, *count, *chunks); err != nil {
		fmt.Fprintln(os.Stderr, "proxy:", err)
		os.Exit(1)
	}
}

func serve(listen string, count, chunks int) error {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return err
	}
	first, err := net.LookupPort("tcp", port)
	if err != nil {
		return err
	}
	failed := make(chan error)
	for i := range count {
		server := &http.Server{Addr: fmt.Sprintf("%s:%d", host, first+i), Handler: engine(chunks)} //nolint:gosec // for a measurement
		go func() { failed <- server.ListenAndServe() }()                                          // ends with the process
	}
	return <-failed
}

const whole = `{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":` +
	`{"role":"assistant","content":"Hello there, how can I help?"},"finish_reason":"stop"}],` +
	`"usage":{"prompt_tokens":2500,"completion_tokens":8,"total_tokens":2508}}`

const chunk = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}` + "\n\n"

func engine(chunks int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if !strings.Contains(string(body[max(0, len(body)-64):]), `"stream":true`) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, whole) // the client may be gone
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		flush := http.NewResponseController(w)
		for range chunks {
			_, _ = io.WriteString(w, chunk)
			_ = flush.Flush()
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	})
}
