package extproc

import (
	"bytes"
	"reflect"
	"testing"

	"google.golang.org/grpc/mem"
)

func requests() []*Request {
	return []*Request{
		{Kind: RequestHeaders, Headers: []Header{{":method", "POST"}, {"x", ""}, {"cookie", "a=\xff"}}, End: true, Subset: []string{"10.0.0.1:8000", "10.0.0.2:8000"}, Subsets: true,
			Source: "10.1.0.1:4444", RequestMode: ModeFullDuplex, ResponseMode: ModeBuffered, HasModes: true},
		{Kind: RequestHeaders, Subsets: true, HasModes: true, Observes: true},
		{Kind: RequestBody, Body: bytes.Repeat([]byte("body"), 50_000)},
		{Kind: RequestBody, Body: []byte{}, End: true},
		{Kind: RequestTrailers, Headers: []Header{{"t", "1"}}, End: true},
		{Kind: ResponseHeaders, Headers: []Header{{":status", "200"}}, Served: "10.0.0.2:8000"},
		{Kind: ResponseBody, Body: []byte("data: x\n\n"), End: true},
		{Kind: ResponseTrailers, End: true},
		{},
	}
}

func responses() []*Response {
	return []*Response{
		{Kind: RequestHeaders, Set: []Header{{"x-gateway-destination-endpoint", "10.0.0.1:8000"}}, Remove: []string{"x-a"}, Reroute: true,
			Endpoint: "10.0.0.1:8000,10.0.0.2:8000", Scores: []Score{{"10.0.0.1:8000", 1}, {"10.0.0.2:8000", 0.25}}},
		{Kind: RequestBody, Streamed: true, Body: bytes.Repeat([]byte("x"), 62_000)},
		{Kind: ResponseBody, Streamed: true, Body: []byte{}, End: true},
		{Kind: RequestBody, Replace: true, Body: []byte("all")},
		{Kind: ResponseHeaders}, {Kind: RequestTrailers}, {Kind: ResponseTrailers}, {Kind: ResponseBody},
		{Kind: Immediate, Status: 429, Set: []Header{{"retry-after", "1"}}, Body: []byte("busy"), Details: "why"},
	}
}

func TestBothWays(t *testing.T) {
	check := func(sent, got any) {
		t.Helper()
		data, err := Codec{}.Marshal(sent)
		if err != nil {
			t.Fatal(err)
		}
		if err := (Codec{}).Unmarshal(data, got); err != nil {
			t.Fatal(err)
		}
	}
	for i, sent := range requests() {
		var got Request
		check(sent, &got)
		got.buffer = nil
		if !reflect.DeepEqual(&got, sent) {
			t.Errorf("request %d: %+v, want %+v", i, got, sent)
		}
	}
	for i, sent := range responses() {
		var got Response
		check(sent, &got)
		got.buffer = nil
		if !reflect.DeepEqual(&got, sent) {
			t.Errorf("response %d: %+v, want %+v", i, got, sent)
		}
	}
	var h HealthRequest
	if check(&HealthRequest{"readiness"}, &h); h.Service != "readiness" {
		t.Error(h)
	}
	var a HealthResponse
	if check(&HealthResponse{NotServing}, &a); a.Status != NotServing {
		t.Error(a)
	}
}

// A subset comes as a list or as one text, and both with commas.
func TestSubsetForms(t *testing.T) {
	text := appendMessage(nil, 8, func(b []byte) []byte {
		return appendMessage(b, 1, func(b []byte) []byte {
			return appendMessage(appendText(b, 1, SubsetSpace), 2, func(b []byte) []byte {
				return appendMember(b, SubsetKey, func(b []byte) []byte { return appendText(b, 3, "10.0.0.1:1, 10.0.0.2:2,") })
			})
		})
	})
	var got Request
	if err := got.read(text); err != nil || !got.Subsets || !reflect.DeepEqual(got.Subset, []string{"10.0.0.1:1", "10.0.0.2:2"}) {
		t.Error(got, err)
	}
}

func FuzzRead(f *testing.F) {
	for _, r := range requests() {
		f.Add(r.append(nil))
	}
	for _, r := range responses() {
		f.Add(r.append(nil))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var r, again Request
		if r.read(data) == nil {
			if err := again.read(r.append(nil)); err != nil {
				t.Fatal(err)
			}
			if again.Kind != r.Kind || len(again.Headers) != len(r.Headers) || !bytes.Equal(again.Body, r.Body) || again.Served != r.Served {
				t.Fatalf("%+v, want %+v", again, r)
			}
		}
		var p, back Response
		if p.read(data) == nil {
			if err := back.read(p.append(nil)); err != nil {
				t.Fatal(err)
			}
			if back.Kind != p.Kind || len(back.Set) != len(p.Set) {
				t.Fatalf("%+v, want %+v", back, p)
			}
		}
		_ = (Codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, new(HealthRequest)) // does not panic
	})
}
