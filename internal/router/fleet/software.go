package fleet

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// Software is which engine it is, by what it says of itself.
type Software struct {
	Name    string // as it owns its models at /v1/models: vllm, sglang, …
	Release [3]int
	// Before: it is one from before the release, such as a release candidate.
	Before bool
}

// Since reports whether it is of the release or a later one.
func (s Software) Since(release [3]int) bool {
	c := slices.Compare(s.Release[:], release[:])
	return c > 0 || c == 0 && !s.Before
}

// versionAt is where engines say their version, by the name that they own their models under.
// Of others none is asked: what they take is not known.
var versionAt = map[string]string{"vllm": "/version", "sglang": "/server_info"}

// Software returns what the engine has said of itself; zero: nothing yet.
func (e *Engine) Software() Software {
	if s := e.software.Load(); s != nil {
		return *s
	}
	return Software{}
}

// Owner returns who owns the engine's models as it lists them, by which engines tell their kind (vllm,
// sglang, …); it is asked if that is not known. "": it does not say, or several.
func (e *Engine) Owner(ctx context.Context, client *http.Client, timeout time.Duration) string {
	if name := e.Owned(); name != "" {
		return name
	}
	if data, ok := e.fetch(ctx, client, "/v1/models", timeout, maxModelList); ok {
		if names, ok := parseModels(data); ok {
			e.owned(&names)
		}
	}
	return e.Owned()
}

// Owned is Owner as far as it is known.
func (e *Engine) Owned() string {
	if name := e.owner.Load(); name != nil {
		return *name
	}
	return ""
}

func (e *Engine) owned(names *listed) {
	if len(names.owners) != 1 {
		e.owner.Store(nil)
		return
	}
	e.owner.Store(&names.owners[0])
}

// askSoftware learns the engine's version, once: a worker whose engine is another by now has
// registered anew.
func (e *Engine) askSoftware(ctx context.Context, client *http.Client, owner string, timeout time.Duration) {
	at := versionAt[owner]
	if at == "" || e.software.Load() != nil {
		return
	}
	data, ok := e.fetch(ctx, client, at, timeout, maxModelList)
	if !ok {
		return
	}
	var said struct {
		Version string `json:"version"`
	}
	if json.Unmarshal(data, &said) != nil {
		return
	}
	if s, ok := parseSoftware(owner, said.Version); ok {
		e.software.Store(&s)
	}
}

var versionForm = regexp.MustCompile(`^v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(.*)$`)

// parseSoftware reads versions as Python's packages have them: 0.27.0, 0.5.13.post1, 0.27.1rc1, 0.26.1.dev5+gabc.
func parseSoftware(name, version string) (s Software, ok bool) {
	m := versionForm.FindStringSubmatch(version)
	if m == nil {
		return s, false
	}
	s.Name = name
	for i := range s.Release {
		s.Release[i], _ = strconv.Atoi(m[i+1]) // digits, or nothing
	}
	s.Before = before.MatchString(m[4])
	return s, true
}

var before = regexp.MustCompile(`^\.?(a|b|c|rc|dev)\d*`)
