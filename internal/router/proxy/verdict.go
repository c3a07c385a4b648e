package proxy

import (
	"bytes"
	"net/http"
	"strings"

	"github.com/kvatlas/kvatlas/internal/wire/jsonscan"
)

// verdict is what an answer with status 200 says of its engine by what is in it: one
// that answers at once, and with nothing, is no idle engine.
type verdict uint8

const (
	unsaid  verdict = iota // nothing so far that a client waits for
	good                   // something
	fails                  // an error of the engine's, or nothing to the end
	refuses                // an error that is the request's
)

// maxVerdict is how much of an answer is looked at: one that goes on for longer without
// a word has something to say.
const maxVerdict = 16 << 10

// judge looks at an answer until it is known what it says, and at its end.
type judge struct {
	on      bool // there is to be an answer; else all is good
	events  bool // it is of events
	choices bool // it is one of /v1/completions or /v1/chat/completions, which has them
	json    bool
	magic   string // with which it begins, where it is packed so
	ping    bool   // a comment has come, which is for the client to see at once
	spoke   bool   // a line has come that is no comment
	said    verdict
	head    []byte // what was seen and says nothing yet
	last    byte   // that is no space
}

func newJudge(q *call, resp *http.Response) judge {
	kind := resp.Header.Get("Content-Type")
	ok := resp.StatusCode == http.StatusOK || q.generates && resp.StatusCode < http.StatusBadRequest // where 204 and redirects have no place
	j := judge{on: q.wants && ok}
	switch resp.Header.Get("Content-Encoding") { // else nobody here can read it
	case "gzip", "x-gzip":
		j.magic = "\x1f\x8b"
	case "zstd":
		j.magic = "\x28\xb5\x2f\xfd"
	case "":
		j.events, j.choices, j.json = strings.HasPrefix(kind, "text/event-stream"), q.generates, strings.Contains(kind, "json")
	}
	return j
}

// see takes a part of the answer.
func (j *judge) see(part []byte) {
	if !j.on {
		return
	}
	if j.json {
		if end := bytes.TrimRight(part, " \t\r\n"); len(end) > 0 {
			j.last = end[len(end)-1]
		}
	}
	if j.said != unsaid {
		return
	}
	kept := len(j.head) > 0
	if kept {
		part = append(j.head, part...)
	}
	j.head = part
	switch {
	case j.magic != "":
		if n := len(j.magic); len(j.head) >= n {
			if j.said = fails; string(j.head[:n]) == j.magic {
				j.said = good
			}
		}
	case j.events:
		j.lines()
	case j.choices:
		if chosen(j.head) {
			j.said = good
		}
	case len(bytes.TrimLeft(j.head, " \t\r\n")) > 0:
		j.said = good
	}
	if len(j.head) > maxVerdict {
		j.said = good
	}
	switch {
	case j.said != unsaid:
		j.head = nil
	case !kept:
		j.head = bytes.Clone(j.head) // part is its caller's
	}
}

// chosen reports whether an answer, or an event of one, has a choice. The key cannot be
// text that was generated: its quotes are escaped.
func chosen(text []byte) bool {
	const key, spaces = `"choices"`, " \t\r\n"
	for {
		at := bytes.Index(text, []byte(key))
		if at < 0 {
			return false
		}
		text = bytes.TrimLeft(text[at+len(key):], spaces)
		if rest, ok := bytes.CutPrefix(text, []byte(":")); ok { // else it is a value, as a model's name
			rest, ok = bytes.CutPrefix(bytes.TrimLeft(rest, spaces), []byte("["))
			rest = bytes.TrimLeft(rest, spaces)
			return ok && len(rest) > 0 && rest[0] != ']'
		}
	}
}

// lines looks at the events that are whole.
func (j *judge) lines() {
	for j.said == unsaid {
		n := bytes.IndexByte(j.head, '\n')
		if n < 0 {
			return
		}
		line := j.head[:n]
		j.head = j.head[n+1:]
		if len(line) > 0 && line[0] == ':' {
			j.ping = true
		} else if len(bytes.TrimSpace(line)) > 0 {
			j.spoke = true
		}
		data, ok := bytes.CutPrefix(line, []byte("data:"))
		if data = bytes.TrimSpace(data); ok && len(data) > 0 && string(data) != "[DONE]" {
			j.said = said(data)
			switch {
			case j.said != good:
			case j.choices && !chosen(data):
				j.said = unsaid // engines may begin with something else
			case !j.choices && heralds(data):
				j.said, j.ping = unsaid, true
			}
		}
	}
}

// onlyComments reports whether nothing but whole comments of a stream has come.
func (j *judge) onlyComments() bool {
	return j.on && j.events && j.ping && !j.spoke && len(j.head) == 0 && j.said != good
}

// heralds reports whether an event of /v1/responses or /v1/messages comes before the first
// token: that the request was taken, which the client is to see at once.
func heralds(data []byte) bool {
	typ, err := member(data, "type")
	if err != nil {
		return false
	}
	switch string(typ) {
	case `"response.created"`, `"response.queued"`, `"response.in_progress"`, `"ping"`:
		return true
	}
	return false
}

// end is told the answer's end, and says what there was.
func (j *judge) end() verdict {
	switch {
	case !j.on:
		return good
	case j.said == unsaid:
		if j.said = said(j.head); j.said == good {
			j.said = fails
		}
	case j.said == good && j.json && j.last != '}' && j.last != ']':
		j.said = fails // it is cut
	}
	return j.said
}

// said tells an error from all else: as vLLM and SGLang put it into streams, and older
// engines in the place of an answer.
func said(object []byte) verdict {
	var r jsonscan.Reader
	r.Reset(object)
	r.Open('{')
	failed, code := false, 0
	for first := true; r.More('}', &first); {
		switch string(r.Key()) {
		case "error":
			raw := r.Raw()
			failed = failed || string(raw) != "null"
			if inner, err := member(raw, "code"); err == nil {
				code = max(code, number(inner))
			}
		case "object", "type":
			what := string(r.Raw())
			failed = what == `"error"` || what == `"response.failed"` || failed
		case "code":
			code = max(code, number(r.Raw()))
		default:
			r.Skip()
		}
	}
	switch {
	case !failed || r.Err() != nil:
		return good
	case clientsFault(code) || code == http.StatusNotFound:
		return refuses
	}
	return fails
}

// number reads a number, or one in quotes; 0 for none.
func number(raw []byte) (n int) {
	for _, c := range bytes.Trim(raw, `"`) {
		if c < '0' || c > '9' || n > 1<<20 {
			return 0
		}
		n = 10*n + int(c-'0')
	}
	return n
}
