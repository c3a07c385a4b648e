package account

import (
	"encoding/json"
	"math"
	"time"
	"unsafe"
)

// Decision is one choice of a worker and what became of it. What is not known is nil.
type Decision struct {
	ID   string    `json:"id"`
	Time time.Time `json:"time"` // of the choice
	// Kept says why it is kept.
	Kept []Kind `json:"kept"`

	Model     string `json:"model_name"`
	BlockSize int    `json:"block_size"`
	Group     string `json:"routing_group"`
	RequestID string `json:"request_id,omitempty"` // route.Options.Name
	TraceID   string `json:"trace_id,omitempty"`   // of the request's spans, if they are recorded
	Phase     string `json:"phase"`                // what the worker was to do
	Mode      string `json:"mode"`                 // the policy

	Worker uint64 `json:"worker_id"`
	DPRank uint32 `json:"dp_rank"`

	Prompt    int     `json:"prompt_tokens"`
	Reachable *int    `json:"reachable_tokens"`
	Selected  *int    `json:"selected_tokens"`
	Actual    *int    `json:"actual_tokens"`
	BestAt    *uint64 `json:"reachable_worker_id"` // who had Reachable
	BestRank  *uint32 `json:"reachable_dp_rank"`
	Short     string  `json:"not_selected,omitempty"` // why Selected is less than Reachable
	Miss      string  `json:"not_found,omitempty"`    // why Actual is not Selected
	Estimated bool    `json:"estimated,omitempty"`    // Reachable and Selected are
	// Pull are those of Selected that the worker was to fetch from PullFrom.
	Pull     int     `json:"pull_tokens,omitempty"`
	PullFrom *uint64 `json:"pull_worker_id,omitempty"`

	// Milliseconds from the choice: what was predicted for the first token, what it took,
	// and until the request was over.
	Predicted float64  `json:"predicted_ms"`
	First     *float64 `json:"first_ms"`
	Total     float64  `json:"total_ms"`
	Failed    bool     `json:"failed,omitempty"` // the worker did not serve it

	// Ranks are those that the policy chose from, and then those that were left out. Rows
	// is their number; 0 if no table was written. Of more than fit into a quarter of Config.Memory
	// only the number is kept.
	Rows  int   `json:"rows"`
	Ranks []Row `json:"candidates,omitempty"`
}

// Row is a rank as the policy saw it.
type Row struct {
	Worker  uint64 `json:"worker_id"`
	DPRank  uint32 `json:"dp_rank"`
	Chosen  bool   `json:"chosen,omitempty"`
	Left    string `json:"left_out,omitempty"` // why it could not be chosen
	Cost    Cost   `json:"cost"`
	Formula string `json:"formula,omitempty"` // of the cost, in the policy's own words
	Stale   bool   `json:"stale,omitempty"`
	Unknown bool   `json:"unknown,omitempty"` // its share did not answer: what it has cached is not known
	// Cached are the leading blocks of the prompt on the device, in host memory too, on
	// disk too, and in external storage too.
	Cached        [4]uint32 `json:"cached_blocks"`
	CachedTokens  int       `json:"cached_tokens"`
	NewTokens     int       `json:"new_tokens"`
	PrefillTokens int       `json:"prefill_tokens"`
	NewBlocks     int       `json:"new_blocks"`
	DecodeBlocks  float64   `json:"decode_blocks"`
	Requests      int       `json:"active_requests"`
	Prefilling    int       `json:"prefilling_requests"`
}

// Cost is what a policy gave a rank; NaN where it gave none.
type Cost float64

// MarshalJSON implements json.Marshaler: null for what is no number.
func (c Cost) MarshalJSON() ([]byte, error) {
	if f := float64(c); !math.IsNaN(f) && !math.IsInf(f, 0) {
		return json.Marshal(f) //nolint:wrapcheck // it is a number
	}
	return []byte("null"), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (c *Cost) UnmarshalJSON(text []byte) error {
	*c = Cost(math.NaN())
	if string(text) == "null" {
		return nil
	}
	return json.Unmarshal(text, (*float64)(c)) //nolint:wrapcheck // the caller's text
}

// Kind is why a Decision is kept.
type Kind string

// The kinds.
const (
	Last    Kind = "last"            // one of the last ones that were sampled
	Slowest Kind = "slowest"         // it took longest to its first token in its minute
	Worst   Kind = "worst_predicted" // its first token was furthest from what was predicted, in its minute
)

// Choose fills in what of the prompt was to be found cached.
func (d *Decision) Choose(c *Choice) {
	d.Prompt = c.Prompt
	if !c.Known {
		return
	}
	reachable, selected, worker, rank := c.Reachable, c.Selected, c.Best.Worker, c.Best.DPRank
	d.Reachable, d.Selected, d.BestAt, d.BestRank, d.Short = &reachable, &selected, &worker, &rank, c.Why.String()
	d.Estimated = c.Estimated
	if c.Pull > 0 {
		from := c.PullFrom.Worker
		d.Pull, d.PullFrom = c.Pull, &from
	}
}

// off is how far its first token was from what was predicted, in ms; below 0 if unknown.
func (d *Decision) off() float64 {
	if d.First == nil {
		return -1
	}
	return math.Abs(*d.First - d.Predicted)
}

// bytes is about how much memory it takes.
func (d *Decision) bytes() int64 {
	n := int64(unsafe.Sizeof(*d)) + int64(cap(d.Ranks))*int64(unsafe.Sizeof(Row{})) + 128
	n += int64(len(d.ID) + len(d.RequestID) + len(d.TraceID))
	for i := range d.Ranks {
		n += int64(len(d.Ranks[i].Formula))
	}
	return n
}

// NoCost is what a rank has that was left out.
func NoCost() Cost { return Cost(math.NaN()) }
