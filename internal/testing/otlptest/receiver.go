package otlptest

import (
	"compress/gzip"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"
)

// Span is one that came.
type Span struct {
	Name, Trace, ID, Parent string // ids as traceparent writes them; of no parent ""
	Service                 string
	Kind                    string
	Failed                  string // with what the status says
	Begin, End              uint64 // Unix nanoseconds
	Is                      map[string]string
}

// Receiver collects spans.
type Receiver struct {
	URL string

	mu    sync.Mutex
	spans []Span
	raw   []byte
}

// Start runs a Receiver until the test ends.
func Start(t *testing.T) *Receiver {
	t.Helper()
	r := new(Receiver)
	s := httptest.NewServer(http.HandlerFunc(r.take))
	t.Cleanup(s.Close)
	r.URL = s.URL
	return r
}

// Spans returns those that have come.
func (r *Receiver) Spans() []Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Span(nil), r.spans...)
}

// Raw returns all bytes that have come.
func (r *Receiver) Raw() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]byte(nil), r.raw...)
}

func (r *Receiver) take(w http.ResponseWriter, req *http.Request) {
	var body io.Reader = req.Body
	if req.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = z
	}
	data, err := io.ReadAll(body)
	var got collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(data, &got)
	}
	if err != nil || req.URL.Path != "/v1/traces" {
		http.Error(w, "no spans", http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.raw = append(r.raw, data...)
	for _, of := range got.GetResourceSpans() {
		service := attributes(of.GetResource().GetAttributes())["service.name"]
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				r.spans = append(r.spans, Span{
					Name: s.GetName(), Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()),
					Service: service, Kind: s.GetKind().String(), Failed: s.GetStatus().GetMessage(),
					Begin: s.GetStartTimeUnixNano(), End: s.GetEndTimeUnixNano(), Is: attributes(s.GetAttributes()),
				})
			}
		}
	}
}

func attributes(list []*common.KeyValue) map[string]string {
	is := make(map[string]string, len(list))
	for _, a := range list {
		switch v := a.GetValue().GetValue().(type) {
		case *common.AnyValue_StringValue:
			is[a.GetKey()] = v.StringValue
		case *common.AnyValue_IntValue:
			is[a.GetKey()] = strconv.FormatInt(v.IntValue, 10)
		case *common.AnyValue_DoubleValue:
			is[a.GetKey()] = strconv.FormatFloat(v.DoubleValue, 'f', -1, 64)
		case *common.AnyValue_BoolValue:
			is[a.GetKey()] = strconv.FormatBool(v.BoolValue)
		}
	}
	return is
}
