package kube

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
)

// state is what the machine is about to do or doing.
type state uint8

const (
	listing  state = iota // the list is read, page by page
	watching              // the list is known, and its changes are followed
	checking              // it is asked whether the server's history still reaches the version
)

func (s state) String() string { return [...]string{"listing", "watching", "checking"}[s] }

// machine is the following of one list: what is asked next, and what an answer means.
// It has no clock and does no I/O. The zero value begins with the list.
type machine struct {
	state   state
	version string            // to watch from
	page    string            // the next page of the list; "" is the first
	pages   []json.RawMessage // the list so far
	most    int               // objects of a list
}

// Kind says what a Change is.
type Kind uint8

// The kinds.
const (
	Replaced Kind = iota // Objects are the whole list
	Stored               // Objects are one that is new or changed
	Deleted              // Objects are one that is gone, or no longer selected
)

// Change is what happened to a list.
type Change struct {
	Kind    Kind
	Objects []json.RawMessage
}

var (
	errTooMany  = errors.New("the list has more objects than may be followed")
	errTooOld   = errors.New("the resource version is too old: the list is read again")
	errNotAList = errors.New("no list of objects")
	errWentBack = errors.New("the API server has an older history than it had (was it restored?): the list is read again")
)

// page is what is read of a list.
type page struct {
	Kind     string
	Metadata struct{ ResourceVersion, Continue string }
	Items    []json.RawMessage
}

// isList reports whether it is one: any other object would be a list of nobody.
func (p *page) isList() bool {
	return strings.HasSuffix(p.Kind, "List") && p.Metadata.ResourceVersion != ""
}

// before reports whether version a is of an older moment than b. Both are decimal, or it is not known.
func before(a, b string) bool {
	for _, v := range [...]string{a, b} {
		if v == "" || v[0] == '0' || strings.Trim(v, "0123456789") != "" {
			return false
		}
	}
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) < 0
}

// onPage takes a page of the list. The change is whole with its last one.
func (m *machine) onPage(body []byte) (c Change, whole bool, err error) {
	var list page
	if err := json.Unmarshal(body, &list); err != nil {
		m.again()
		return c, false, err
	}
	if !list.isList() {
		m.again()
		return c, false, errNotAList
	}
	if len(m.pages)+len(list.Items) > m.most {
		m.again()
		return c, false, errTooMany
	}
	m.pages = append(m.pages, list.Items...)
	if m.page = list.Metadata.Continue; m.page != "" {
		return c, false, nil
	}
	c = Change{Kind: Replaced, Objects: m.pages}
	m.state, m.version, m.pages = watching, list.Metadata.ResourceVersion, nil
	return c, true, nil
}

// event is one of a watch.
type event struct {
	Type   string
	Object json.RawMessage
}

// onEvent takes an event of the watch; told is false for what nobody needs to know.
// After an error the watch has ended.
func (m *machine) onEvent(e *event) (c Change, told bool, err error) {
	var object struct {
		Metadata struct{ ResourceVersion string }
		Code     int
		Message  string
	}
	if err := json.Unmarshal(e.Object, &object); err != nil {
		m.again()
		return c, false, err
	}
	if e.Type == "ERROR" {
		return c, false, m.onStatus(object.Code, object.Message)
	}
	kind, ok := map[string]Kind{"ADDED": Stored, "MODIFIED": Stored, "DELETED": Deleted}[e.Type]
	if object.Metadata.ResourceVersion == "" || !ok && e.Type != "BOOKMARK" {
		m.again() // what it says of the list is not known
		return c, false, errors.New("an event of a watch that is not understood: " + e.Type)
	}
	if before(object.Metadata.ResourceVersion, m.version) {
		m.again()
		return c, false, errWentBack
	}
	m.version = object.Metadata.ResourceVersion
	return Change{Kind: kind, Objects: []json.RawMessage{e.Object}}, ok, nil
}

// onStatus takes an answer that is an error, and returns it as one. A list begins
// anew, a watch goes on where it was unless that is too long ago, or has not been yet.
func (m *machine) onStatus(code int, message string) error {
	if code == http.StatusGone {
		m.again()
	}
	m.onBroken()
	if code == http.StatusGone {
		return errTooOld
	}
	return &StatusError{Code: code, Message: message}
}

// onBroken says that a request ended without an answer that can be read in full.
func (m *machine) onBroken() {
	if m.state == listing {
		m.again()
		return
	}
	m.state = checking // what comes after it may be another history
}

// onSilence says that a watch has ended in good order, and has brought nothing, no bookmark either: so
// does one from a version that a server has not reached.
func (m *machine) onSilence() { m.state = checking }

// onCheck takes a part of a list, which says where the server is.
func (m *machine) onCheck(body []byte) error {
	var list page
	switch err := json.Unmarshal(body, &list); {
	case err != nil:
		return err
	case !list.isList():
		return errNotAList
	case before(list.Metadata.ResourceVersion, m.version):
		m.again()
		return errWentBack
	}
	m.state = watching
	return nil
}

// again begins with the first page of the list.
func (m *machine) again() { *m = machine{most: m.most} }
