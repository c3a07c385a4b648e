package accesslog

import (
	"encoding/json"
	"strconv"
	"time"
)

// Entry is one request. What is not known is zero, and left out.
type Entry struct {
	Time      time.Time // when it came
	RequestID string
	TraceID   string // of the request's spans, if they are recorded
	Client    string // address
	Method    string
	Path      string
	Tenant    string
	Model     string
	Worker    *uint64 // that answered, or was asked last
	DPRank    *uint32
	Prefill   *uint64 // that computed the prompt
	Status    int
	Outcome   string
	BytesIn   int64 // of the body
	Bytes     int64 // of the answer's
	Queue     time.Duration
	FirstByte time.Duration // from Time
	Total     time.Duration
	Retries   int
	Prompt    int // tokens, likewise
	Cached    int
	Output    int
}

// maxText bounds the texts that clients choose, in bytes.
const maxText = 256

// append adds the entry's line.
func (e *Entry) append(b []byte) []byte {
	b = append(b, `{"time":"`...)
	b = e.Time.UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z")
	b = append(b, '"')
	b = text(b, "request_id", e.RequestID)
	b = text(b, "trace_id", e.TraceID)
	b = text(b, "client", e.Client)
	b = text(b, "method", e.Method)
	b = text(b, "path", e.Path)
	b = text(b, "tenant", e.Tenant)
	b = text(b, "model", e.Model)
	if e.Worker != nil {
		b = append(strconv.AppendUint(append(b, `,"worker":"`...), *e.Worker, 10), '"')
	}
	if e.DPRank != nil {
		b = number(b, "dp_rank", int64(*e.DPRank))
	}
	if e.Prefill != nil {
		b = append(strconv.AppendUint(append(b, `,"prefill_worker":"`...), *e.Prefill, 10), '"')
	}
	b = number(b, "status", int64(e.Status))
	b = text(b, "outcome", e.Outcome)
	b = number(b, "bytes_in", e.BytesIn)
	b = number(b, "bytes", e.Bytes)
	b = ms(b, "queue_ms", e.Queue)
	if e.FirstByte > 0 {
		b = ms(b, "first_byte_ms", e.FirstByte)
	}
	b = ms(b, "total_ms", e.Total)
	b = number(b, "retries", int64(e.Retries))
	for _, n := range [...]struct {
		name  string
		value int
	}{{"prompt_tokens", e.Prompt}, {"cached_tokens", e.Cached}, {"output_tokens", e.Output}} {
		if n.value > 0 {
			b = number(b, n.name, int64(n.value))
		}
	}
	return append(b, "}\n"...)
}

func text(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	if len(value) > maxText {
		value = value[:maxText]
	}
	quoted, err := json.Marshal(value) // bytes that are no UTF-8 become U+FFFD
	if err != nil {
		return b
	}
	b = append(append(b, `,"`...), name...)
	return append(append(b, `":`...), quoted...)
}

func number(b []byte, name string, value int64) []byte {
	b = append(append(b, `,"`...), name...)
	return strconv.AppendInt(append(b, `":`...), value, 10)
}

func ms(b []byte, name string, d time.Duration) []byte {
	b = append(append(b, `,"`...), name...)
	return strconv.AppendFloat(append(b, `":`...), float64(d.Microseconds())/1000, 'f', -1, 64)
}
