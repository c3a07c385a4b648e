package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestHTTPMeasuresEveryForm(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run([]string{"http", "--workers", "3", "--blocks", "4", "--seconds", "0.05", "--connections", "2"}, &out, &errs); code != 0 {
		t.Fatalf("exit %d: %s", code, &errs)
	}
	var forms []string
	for d := json.NewDecoder(&out); d.More(); {
		var line httpLine
		if err := d.Decode(&line); err != nil {
			t.Fatal(err)
		}
		if forms = append(forms, line.Form); line.Requests <= 0 || line.Floor <= 0 || line.P50 <= 0 || line.P99 < line.P50 || line.AnswerSize < 100 {
			t.Errorf("%+v", line)
		}
	}
	if len(forms) != 5 {
		t.Errorf("forms %q", forms)
	}
	for _, args := range [][]string{{"http", "x"}, {"http", "--workers", "0"}, {"http", "--seconds", "-1"}, {"http", "--no"}} {
		if code := run(args, &out, &errs); code != 2 {
			t.Errorf("%q: exit %d", args, code)
		}
	}
}

func TestHTTPServesForOthers(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	dir := t.TempDir()
	pr, pw := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- measureHTTP(ctx, httpOptions{workers: 2, blocks: 3, serve: "127.0.0.1:0", bodies: dir}, pw)
	}()
	address, err := bufio.NewReader(pr).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"json": "/v1/find_matches", "tokens": "/v1/find_matches", "query": "/query", "query_by_hash": "/query_by_hash"} {
		body, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.Post("http://"+strings.TrimSpace(address)+path, "application/json", bytes.NewReader(body)) //nolint:noctx,gosec // loopback
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(resp.Body)
		if err != nil || resp.Body.Close() != nil || resp.StatusCode != 200 || !bytes.Contains(answer, []byte("48")) { // tokens
			t.Errorf("%s: %s %s", name, resp.Status, answer)
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
