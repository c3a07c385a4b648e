package trace

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"testing"
	"time"
)

func TestParseLine(t *testing.T) {
	f := func(line string, want Request) {
		t.Helper()
		got := Request{Session: "before", IDs: []uint64{9, 9}}
		if err := parseLine([]byte(line), &got); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if got.Arrival != want.Arrival || got.Input != want.Input || got.Output != want.Output ||
			got.Session != want.Session || !slices.Equal(got.IDs, want.IDs) {
			t.Fatalf("%s: got %+v, want %+v", line, got, want)
		}
	}
	f(`{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}`,
		Request{Input: 6758, Output: 500, IDs: []uint64{0, 1, 2}})
	f(` {"session_id":"trace_0266","hash_ids":[18446744073709551615],"x":{"y":[1,{"z":null}],"t":true},"output_length":0,"input_length":1,"timestamp":1.5e3} `,
		Request{Arrival: 1500 * time.Millisecond, Input: 1, Session: "trace_0266", IDs: []uint64{math.MaxUint64}})
	f(`{"timestamp":2,"input_length":1,"output_length":3,"hash_ids":[],"session_id":"a\u0062\n"}`,
		Request{Arrival: 2 * time.Millisecond, Input: 1, Output: 3, Session: "ab\n"})
	f(`{"timestamp":2,"input_length":1,"output_length":3,"hash_ids":[],"session_id":-17}`,
		Request{Arrival: 2 * time.Millisecond, Input: 1, Output: 3, Session: "-17"})
	f(`{"timestamp":2,"input_length":1,"output_length":3,"hash_ids":[],"session_id":null}`,
		Request{Arrival: 2 * time.Millisecond, Input: 1, Output: 3})
	f(`{"timestamp":2,"timestamp":4,"input_length":1,"output_length":3,"hash_ids":[5],"hash_ids":[6]}`,
		Request{Arrival: 4 * time.Millisecond, Input: 1, Output: 3, IDs: []uint64{6}})
}

func TestParseLineRefuses(t *testing.T) {
	f := func(line, want string) {
		t.Helper()
		err := parseLine([]byte(line), new(Request))
		if err == nil || err.Error() != want {
			t.Fatalf("%s: got error %v, want %s", line, err, want)
		}
	}
	f(``, errTruncated.Error())
	f(`[]`, `column 1: '[' where '{' is expected`)
	f(`{}`, `field "timestamp" is missing`)
	f(`{"timestamp":0,"input_length":1,"output_length":1}`, `field "hash_ids" is missing`)
	f(`{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[]} x`, `unexpected 'x' after the JSON object`)
	f(`{"timestamp":-1}`, `field "timestamp": -1 is not a time in ms between 0 and 3153600000000`)
	f(`{"input_length":1.5}`, `field "input_length": 1.5 is not a whole number between 0 and 1073741824`)
	f(`{"output_length":-1}`, `field "output_length": -1 is not a whole number between 0 and 1073741824`)
	f(`{"input_length":1073741825}`, `field "input_length": 1073741825 is not a whole number between 0 and 1073741824`)
	f(`{"input_length":"1"}`, `field "input_length": column 17: '"' where a number is expected`)
	f(`{"hash_ids":[1,18446744073709551616]}`, `field "hash_ids": element 1 does not fit 64 bits`)
	f(`{"hash_ids":[1,-2]}`, `field "hash_ids": element 1 is not a whole number from 0 on: column 16: '-' where a digit is expected`)
	f(`{"hash_ids":[1,02]}`, `field "hash_ids": element 1 is not a whole number from 0 on: column 16: '0' where a digit is expected`)
	f(`{"hash_ids":[1.5]}`, `field "hash_ids": column 15: '.' where ',' or ']' is expected`)
	f(`{"hash_ids":[1,2`, `field "hash_ids": `+errTruncated.Error())
	f(`{"a":"\`, `field "a": `+errTruncated.Error())
	f(`{"a":tru}`, `field "a": column 6: 't' where true is expected`)
}

// What the parser accepts, encoding/json reads as the same values; what it
// refuses is no JSON or is not a request.
func FuzzParseLine(f *testing.F) {
	f.Add([]byte(`{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}`))
	f.Add([]byte(`{"timestamp":1.5e3,"input_length":1,"output_length":0,"hash_ids":[18446744073709551615],"session_id":"t\u0062","x":{"y":[1,{"z":null}],"t":true}}`))
	f.Add([]byte(`{"hash_ids":[01]}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		var got Request
		err := parseLine(line, &got)
		want, ok := reference(line)
		if (err == nil) != ok {
			t.Fatalf("error %v, encoding/json accepts: %v", err, ok)
		}
		if err == nil && (got.Arrival != want.Arrival || got.Input != want.Input || got.Output != want.Output ||
			got.Session != want.Session || !slices.Equal(got.IDs, want.IDs)) {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}

// reference is parseLine by encoding/json.
func reference(line []byte) (r Request, ok bool) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(line, &fields) != nil || fields == nil || nested(line) > 30 {
		return r, false
	}
	var ms float64
	number := func(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] != 'n' }
	if !number(fields["timestamp"]) || json.Unmarshal(fields["timestamp"], &ms) != nil || ms < 0 || ms > maxMillis {
		return r, false
	}
	r.Arrival = time.Duration(math.Round(ms * 1e6))
	for name, p := range map[string]*int{"input_length": &r.Input, "output_length": &r.Output} {
		var n uint32
		if !number(fields[name]) || json.Unmarshal(fields[name], &n) != nil || n > maxTokens {
			return r, false
		}
		*p = int(n)
	}
	var ids []*uint64
	if !number(fields["hash_ids"]) || json.Unmarshal(fields["hash_ids"], &ids) != nil {
		return r, false
	}
	for _, id := range ids {
		if id == nil {
			return r, false
		}
		r.IDs = append(r.IDs, *id)
	}
	if raw, has := fields["session_id"]; has && raw[0] != 'n' {
		if json.Unmarshal(raw, &r.Session) == nil {
			return r, true
		}
		if _, err := strconv.ParseFloat(string(raw), 64); err != nil && raw[0] != '-' && (raw[0] < '0' || raw[0] > '9') {
			return r, false
		}
		r.Session = string(raw)
	}
	return r, true
}

// nested is at least how deep a line nests.
func nested(line []byte) int {
	depth, most := 0, 0
	for _, c := range line {
		switch c {
		case '{', '[':
			depth++
			most = max(most, depth)
		case '}', ']':
			depth--
		}
	}
	return most
}
