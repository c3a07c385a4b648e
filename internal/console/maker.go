package console

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/route/account"
)

// maker makes the frames of one view. The sampler has it.
type maker struct {
	number  uint64
	epoch   uint64
	members []byte
	prev    map[string]*shownCells // by group's key
	scales  [numMetrics]scale
	history []byte // points, with commas
	points  []int  // where each begins
}

// shownCells are what was last shown of a group.
type shownCells struct {
	state []byte
	value [numMetrics][]byte
}

// maxPoints bounds the history: of the last minutes.
const maxPoints = 180

// keyOf names a group in events, without a character that JSON would change.
func keyOf(sp event.Space, role string) string {
	h := xxh3.HashString(fmt.Sprintf("%q %d %q %s", sp.Model, sp.BlockSize, sp.Group, role))
	return strconv.FormatUint(h, 36)
}

// make makes the frame of the sampler's last look, for who may see the tenant's or all.
func (k *maker) make(s *sampler, tenant *string, readers *[numMetrics]int) *frame {
	var groups []*group
	for _, g := range s.groups {
		if tenant == nil || g.space.Group == *tenant {
			groups = append(groups, g)
		}
	}
	if k.epoch != s.epoch || k.members == nil {
		k.epoch, k.members, k.prev = s.epoch, appendMembers(nil, s, groups), nil
	}
	k.number++
	f := &frame{number: k.number, epoch: k.epoch, members: k.members}
	o := s.overview(tenant, groups)
	f.overview = appendEvent(nil, "overview", o)
	f.history = k.historyEvent()
	k.note(o)
	for _, d := range s.decisions {
		if tenant == nil || d.Group == *tenant {
			f.events = appendEvent(f.events, "decision", decisionOf(d))
		}
	}
	k.cells(f, groups, readers)
	return f
}

// cells writes what cells show, all of it when somebody needs it.
func (k *maker) cells(f *frame, groups []*group, readers *[numMetrics]int) {
	now := make(map[string]*shownCells, len(groups))
	for _, g := range groups {
		now[g.key] = &shownCells{state: g.state}
	}
	for m := range numMetrics {
		sc, blocks := scaleOf(m, groups)
		same := k.prev != nil && sc == k.scales[m]
		k.scales[m] = sc
		var all, changed []groupCells
		for _, g := range groups {
			v := make([]byte, len(g.state))
			for i, x := range g.x[m] {
				v[i] = sc.value(x)
			}
			if m == held && !blocks && !g.whole {
				for i := range v {
					v[i] = unknown
				}
			}
			now[g.key].value[m] = v
			c := groupCells{g.key, g.state, v}
			all = append(all, c)
			if old := k.prev[g.key]; !same || old == nil || !bytes.Equal(old.state, g.state) || !bytes.Equal(old.value[m], v) {
				changed = append(changed, c)
			}
		}
		f.cells[m] = &lazyCells{write: func() []byte { return appendCells(nil, f.epoch, m, sc, all) }}
		if readers[m] > 0 {
			d := bytes.Clone(f.overview)
			if len(changed) > 0 {
				d = appendCells(d, f.epoch, m, sc, changed)
			}
			f.delta[m] = append(d, f.events...)
		}
	}
	k.prev = now
}

// scaleOf returns the scale of a view's values: blocks says that nobody's capacity is known.
func scaleOf(m metric, groups []*group) (sc scale, blocks bool) {
	most := 0.0
	blocks = m == held
	for _, g := range groups {
		blocks = blocks && !g.whole
		for _, x := range g.x[m] {
			if x > most { // and known
				most = x
			}
		}
	}
	switch m {
	case held:
		if !blocks {
			return scale{"of capacity", 1}, false
		}
		return scale{"blocks", round(most)}, true
	case load:
		return scale{"requests", round(most)}, false
	case hit:
		return scale{"of prompt tokens", 1}, false
	case lag:
		return scale{"events", round(most)}, false
	}
	return scale{"seconds", mostAge}, false
}

// mostAge is where the scale of ages ends, in seconds: what is older is shown as that.
const mostAge = 300

// appendMembers appends the event of who is there.
func appendMembers(b []byte, s *sampler, groups []*group) []byte {
	b = append(b, "event: members\ndata: {\"epoch\":"...)
	b = strconv.AppendUint(b, s.epoch, 10)
	b = append(append(append(b, `,"cell":"`...), s.perRow...), `","groups":[`...)
	for i, g := range groups {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, `{"key":"`...), g.key...)
		b = append(append(b, `","model":`...), text(g.space.Model)...)
		b = append(b, `,"block_size":`...)
		b = strconv.AppendUint(b, uint64(g.space.BlockSize), 10)
		b = append(append(b, `,"group":`...), text(g.space.Group)...)
		b = append(append(b, `,"role":`...), text(g.role)...)
		b = append(b, `,"cells":[`...)
		for j, first := range g.first[:len(g.first)-1] {
			if j > 0 {
				b = append(b, ',')
			}
			r := g.ranks[first]
			b = append(b, `{"id":"`...)
			b = strconv.AppendUint(b, r.Worker, 10)
			if s.perRow == "rank" {
				b = append(b, ':')
				b = strconv.AppendUint(b, uint64(r.DPRank), 10)
			}
			b = append(b, `","worker":"`...)
			b = strconv.AppendUint(b, r.Worker, 10)
			b = append(b, `","rank":`...)
			if s.perRow == "rank" {
				b = strconv.AppendUint(b, uint64(r.DPRank), 10)
			} else {
				b = append(b, "null"...)
			}
			b = append(b, '}')
		}
		b = append(b, "]}"...)
	}
	return append(b, "]}\n\n"...)
}

// historyEvent returns what new readers get of the seconds before.
func (k *maker) historyEvent() []byte {
	b := append([]byte(nil), "event: history\ndata: {\"step_ms\":"...)
	b = strconv.AppendInt(b, int64(frameEvery/time.Millisecond), 10)
	b = append(append(b, `,"points":[`...), bytes.TrimSuffix(k.history, []byte{','})...)
	return append(b, "]}\n\n"...)
}

// note keeps the totals for that.
func (k *maker) note(o *overview) {
	k.points = append(k.points, len(k.history))
	point := appendJSON(nil, map[string]any{"now_ms": o.Sampled, "totals": o.Totals})
	k.history = append(append(k.history, point...), ',')
	if len(k.points) > maxPoints {
		cut := k.points[1]
		k.history = append(k.history[:0], k.history[cut:]...)
		k.points = k.points[:copy(k.points, k.points[1:])]
		for i := range k.points {
			k.points[i] -= cut
		}
	}
}

// shownDecision is one as the event decision has it.
type shownDecision struct {
	ID        string  `json:"id"`
	Time      int64   `json:"time_ms"`
	Model     string  `json:"model"`
	Worker    string  `json:"worker"`
	Rank      uint32  `json:"rank"`
	Prompt    int     `json:"prompt"`
	Reachable *int    `json:"reachable"`
	Selected  *int    `json:"selected"`
	Actual    *int    `json:"actual"`
	Reason    *string `json:"reason"` // why selected is less than reachable
	Miss      *string `json:"miss"`   // why actual is not selected
	TraceID   *string `json:"trace_id"`
}

func decisionOf(d *account.Decision) *shownDecision {
	return &shownDecision{
		ID: d.ID, Time: d.Time.UnixMilli(), Model: d.Model, Worker: strconv.FormatUint(d.Worker, 10), Rank: d.DPRank,
		Prompt: d.Prompt, Reachable: d.Reachable, Selected: d.Selected, Actual: d.Actual, Reason: some(d.Short), Miss: some(d.Miss),
	}
}

// some returns nil for an empty text.
func some(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// version is what was built.
func version() string { return obs.ReadVersion().Version }
