package extproc

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
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
	got := Request{room: 1000}
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
		r, again := Request{room: 1 << 20}, Request{room: 1 << 20}
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

// What is not a body takes little memory, whatever it is: small things are many in a message.
func TestHeadsAreBounded(t *testing.T) {
	nothing := func(b []byte) []byte { return b }
	small := appendMessage(nil, 2, func(b []byte) []byte {
		return appendMessage(b, 1, func(b []byte) []byte {
			for range 5000 {
				b = append(b, 1<<3|2, 0) // a header without name and value
			}
			return b
		})
	})
	names := (&Request{Kind: RequestHeaders, Subsets: true, Subset: []string{strings.Repeat("a,", 5000)}}).append(nil)
	large := appendMessage(nil, 2, func(b []byte) []byte { return appendText(b, 9, make([]byte, 70_000)) })
	spaces := appendMessage(nil, 8, func(b []byte) []byte { return append(appendMessage(b, 1, nothing), make([]byte, 70_000)...) })
	for i, text := range [][]byte{small, names, large, spaces} {
		if err := (Codec{MaxHead: 64 << 10}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(text)}, new(Request)); !errors.Is(err, ErrTooLarge) {
			t.Error(i, err)
		}
	}
	body := (&Request{Kind: RequestBody, Body: make([]byte, 1<<20)}).append(nil)
	if err := (Codec{MaxHead: 64 << 10}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(body)}, new(Request)); err != nil {
		t.Error(err)
	}
}
