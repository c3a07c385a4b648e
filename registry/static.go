package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/reload"
)

// maxStatic bounds the file of a static list, in bytes.
const maxStatic = 16 << 20

// ReadStatic reads a file with a static list. An empty one is refused: it may be one
// that is being written; [] is a list of none.
func ReadStatic(path string) ([]Worker, error) {
	data, err := reload.Read(path, maxStatic)
	if err != nil {
		return nil, fmt.Errorf("list of workers: %w", err)
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, errors.New("list of workers: the file is empty; [] is a list of none")
	}
	return ParseStatic(data)
}

// ParseStatic reads a static list: a YAML or JSON sequence of workers, with
// the fields of Worker and a worker_id that is a number or a name.
func ParseStatic(data []byte) ([]Worker, error) {
	var doc any
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("list of workers: %w", err)
	}
	list, ok := doc.([]any)
	if !ok && doc != nil {
		return nil, errors.New("list of workers: give a sequence, one worker an item")
	}
	workers := make([]Worker, 0, len(list))
	seen := make(map[Key]bool)
	for i, item := range list {
		w, err := parseStaticWorker(item)
		if err == nil && seen[w.Key()] {
			err = fmt.Errorf("worker %d is there twice", w.ID)
		}
		if err != nil {
			return nil, fmt.Errorf("list of workers: item %d: %w", i+1, err)
		}
		seen[w.Key()] = true
		workers = append(workers, w)
	}
	return workers, nil
}

func parseStaticWorker(item any) (Worker, error) {
	fields, ok := plain(item).(map[string]any)
	if !ok {
		return Worker{}, errors.New("no mapping of fields")
	}
	for name := range fields {
		if strings.ContainsFunc(name, func(r rune) bool { return r >= utf8.RuneSelf || r >= 'A' && r <= 'Z' }) {
			return Worker{}, fmt.Errorf("unknown field %q", name) // which encoding/json would take for another's name
		}
	}
	id, err := json.Marshal(fields["worker_id"])
	if err != nil {
		return Worker{}, fmt.Errorf("worker_id: %w", err)
	}
	delete(fields, "worker_id")
	data, err := json.Marshal(fields)
	if err != nil {
		return Worker{}, err
	}
	var w Worker
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&w); err != nil {
		return Worker{}, err
	}
	name := ""
	if w.ID, name, err = parseID(id); err != nil {
		return Worker{}, fmt.Errorf("worker_id: %w", err)
	}
	if name != "" {
		w.Name = name
	}
	if err := w.CheckHTTP(); err != nil {
		return Worker{}, err
	}
	return w, w.normalise()
}

// CheckHTTP requires that the engine's address is one, if there is one.
func (w *Worker) CheckHTTP() error {
	text := w.Endpoints.HTTP
	u, err := url.Parse(text)
	if err != nil || u.User != nil || text != "" && (u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("endpoints.http: %.200q is no http:// or https:// URL without a password", conf.HideCredentials(text))
	}
	return nil
}

// plain turns the mappings that YAML keys by number into those that JSON has.
func plain(v any) any {
	switch v := v.(type) {
	case map[any]any:
		m := make(map[string]any, len(v))
		for k, x := range v {
			m[fmt.Sprint(k)] = plain(x)
		}
		return m
	case map[string]any:
		for k, x := range v {
			v[k] = plain(x)
		}
	case []any:
		for i, x := range v {
			v[i] = plain(x)
		}
	}
	return v
}

// parseID reads a worker's id from JSON: a whole number, the same as a text,
// or a name, which is returned too.
func parseID(raw json.RawMessage) (id uint64, name string, err error) {
	var text string
	if json.Unmarshal(raw, &text) == nil && string(raw) != "null" {
		if text == "" || len(text) > maxText {
			return 0, "", fmt.Errorf("give a number, or a name of 1 to %d bytes", maxText)
		}
		if _, err := strconv.ParseUint(text, 10, 64); err != nil {
			name = text
		}
		return event.WorkerID(text), name, nil
	}
	if id, err = strconv.ParseUint(string(raw), 10, 64); err != nil {
		return 0, "", fmt.Errorf("give a whole number of 64 bits, or a name, not %.40s", raw)
	}
	return id, "", nil
}
