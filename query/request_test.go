package query

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// parsed is what a body asks for, in a form that compares.
type parsed struct {
	Model, Group, Lora, Salt string
	Tokens                   []uint32
	Hashes                   []uint64
	BlockSize, MaxBlocks     uint32
	Has                      fieldSet
}

func (r *findRequest) parsed() parsed {
	return parsed{string(r.model), string(r.group), string(r.lora), string(r.salt),
		slices.Clone(r.tokens), slices.Clone(r.hashes), r.blockSize, r.maxBlocks, r.has}
}

func (r *parsed) equal(o parsed) bool {
	return r.Model == o.Model && r.Group == o.Group && r.Lora == o.Lora && r.Salt == o.Salt &&
		slices.Equal(r.Tokens, o.Tokens) && slices.Equal(r.Hashes, o.Hashes) &&
		r.BlockSize == o.BlockSize && r.MaxBlocks == o.MaxBlocks && r.Has == o.Has
}

// reference parses a body with encoding/json, by the rules of the API. It is
// slow and obvious.
func reference(body []byte, maxTokens int) (parsed, error) {
	var r parsed
	if !utf8.Valid(body) || !json.Valid(body) {
		return r, errors.New("not JSON")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return r, errors.New("not an object")
	}
	seen := map[string]bool{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return r, err
		}
		name := key.(string)
		f := fieldOf([]byte(name))
		if f == 0 || seen[name] {
			return r, fmt.Errorf("field %q", name)
		}
		seen[name] = true
		var v any
		if err := d.Decode(&v); err != nil {
			return r, err
		}
		if v == nil {
			continue
		}
		r.Has |= f
		if err := r.set(f, v, maxTokens); err != nil {
			return r, err
		}
	}
	if _, err := d.Token(); err != nil {
		return r, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return r, errors.New("more than one value")
	}
	hashes := r.Has&fieldHashes != 0
	if r.Has&fieldModel == 0 || hashes == (r.Has&fieldTokens != 0) || hashes && r.Lora+r.Salt != "" {
		return r, errors.New("fields do not go together")
	}
	return r, nil
}

func (r *parsed) set(f fieldSet, v any, maxTokens int) error {
	switch f {
	case fieldModel, fieldGroup, fieldLora, fieldSalt:
		s, ok := v.(string)
		if !ok || len(s) > maxName {
			return errors.New("not a name")
		}
		*map[fieldSet]*string{fieldModel: &r.Model, fieldGroup: &r.Group, fieldLora: &r.Lora, fieldSalt: &r.Salt}[f] = s
	case fieldBlockSize:
		n, err := whole(v, 1, 1024)
		r.BlockSize = uint32(n)
		return err
	case fieldMaxBlocks:
		n, err := whole(v, 1, 1<<31)
		r.MaxBlocks = uint32(n)
		return err
	default:
		all, ok := v.([]any)
		if !ok || len(all) > maxTokens {
			return errors.New("not an array within the limit")
		}
		for _, e := range all {
			if f == fieldTokens {
				n, err := whole(e, 0, math.MaxUint32)
				if err != nil {
					return err
				}
				r.Tokens = append(r.Tokens, uint32(n))
				continue
			}
			if s, ok := e.(string); ok {
				if !json.Valid([]byte(s)) || strings.TrimSpace(s) != s {
					return errors.New("not a decimal text")
				}
				e = json.Number(s)
			}
			n, err := whole(e, 0, math.MaxUint64)
			if err != nil {
				return err
			}
			r.Hashes = append(r.Hashes, n)
		}
	}
	return nil
}

func whole(v any, lo, hi uint64) (uint64, error) {
	n, ok := v.(json.Number)
	if !ok || n == "" || strings.Trim(string(n), "0123456789") != "" {
		return 0, errors.New("not a whole number")
	}
	i, ok := new(big.Int).SetString(string(n), 10)
	if !ok || !i.IsUint64() || i.Uint64() < lo || i.Uint64() > hi {
		return 0, errors.New("out of range")
	}
	return i.Uint64(), nil
}

// halfPair reports whether encoding/json has replaced half a surrogate pair,
// which parse refuses.
func halfPair(r parsed, body []byte) bool {
	return strings.ContainsRune(r.Model+r.Group+r.Lora+r.Salt, utf8.RuneError) &&
		!bytes.ContainsRune(body, utf8.RuneError) && !bytes.Contains(bytes.ToLower(body), []byte(`\ufffd`))
}

func compare(t *testing.T, body []byte) {
	t.Helper()
	const maxTokens = 1000
	want, refErr := reference(body, maxTokens)
	var r findRequest
	p := r.parse(body, maxTokens)
	if p != nil && (p.Status != 400 || p.Field == "" || p.Reason == "" || p.Message == "") {
		t.Errorf("%q: incomplete problem %+v", body, p)
	}
	switch {
	case refErr == nil && p != nil && halfPair(want, body):
	case (refErr == nil) != (p == nil):
		t.Errorf("%q: got %v, encoding/json says %v", body, p, refErr)
	case p == nil && !want.equal(r.parsed()):
		t.Errorf("%q: got %+v, want %+v", body, r.parsed(), want)
	}
}

// corpus is a body of each kind, good and bad.
func corpus() []string {
	return []string{
		`{"model":"m","token_ids":[1,2,3]}`,
		`{"model":"m","hashes":[18446744073709551615,"18446744073709551615",0,"0"]}`,
		` { "model" : "m" , "group":"g","block_size":16,"lora_name":"l","cache_salt":"s","max_blocks":9,"token_ids":[ ] } `,
		`{"model":"m\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00é😀","hashes":[],"group":null}`,
		`{"\u006dodel":"m","hashes":null,"token_ids":[4294967295]}`,
		`{"model":"m","token_ids":[4294967296]}`,
		`{"model":"m","hashes":[18446744073709551616]}`,
		`{"model":"m","hashes":["18446744073709551616"]}`,
		`{"model":"m","hashes":[1.0,1e3,-1,01,-0]}`,
		`{"model":"m","hashes":[1e3]}`, `{"model":"m","hashes":[-0]}`, `{"model":"m","hashes":[01]}`,
		`{"model":"m","hashes":["007"]}`, `{"model":"m","hashes":[" 1"]}`, `{"model":"m","hashes":["1 "]}`, `{"model":"m","hashes":[""]}`,
		`{"model":"m","hashes":["\u0031"]}`,
		`{"model":"m","hashes":[[1]]}`, `{"model":"m","hashes":[true]}`, `{"model":"m","hashes":[null]}`,
		`{"model":"m","hashes":[1,]}`, `{"model":"m","hashes":[1 2]}`, `{"model":"m","hashes":[1`, `{"model":"m","hashes":{}}`,
		`{"model":"m","hashes":[1],"token_ids":[1]}`, `{"model":"m"}`, `{"hashes":[1]}`,
		`{"model":"m","hashes":[1],"lora_name":"l"}`, `{"model":"m","hashes":[1],"lora_name":""}`,
		`{"model":"m","model":"n","hashes":[1]}`, `{"Model":"m","hashes":[1]}`, `{"x":1}`,
		`{"model":"m","hashes":[1]}x`, `{"model":"m","hashes":[1]}{}`, `[]`, `null`, ``, `{`, `{}`, `{"model"}`, `{,}`,
		`{"model":"m","hashes":[1],}`, `{"model":5,"hashes":[1]}`, `{"model":"m` + "\x01" + `","hashes":[1]}`,
		`{"model":"\ud800","hashes":[1]}`, `{"model":"\ud800\u0041","hashes":[1]}`, `{"model":"\x","hashes":[1]}`, `{"model":"\u12","hashes":[1]}`,
		"{\"model\":\"\xff\",\"hashes\":[1]}", "{\"model\":\"\\n\xff\",\"hashes\":[1]}", "\xef\xbb\xbf{}",
		`{"model":"m","block_size":0,"hashes":[1]}`, `{"model":"m","block_size":1025,"hashes":[1]}`,
		`{"model":"m","block_size":"16","hashes":[1]}`, `{"model":"m","block_size":16.0,"hashes":[1]}`,
		`{"model":"m","hashes":[1],"max_blocks":0}`, `{"model":nul,"hashes":[1]}`, `{"model":"` + strings.Repeat("m", 1025) + `","hashes":[1]}`,
		`{"model":"m","token_ids":[` + strings.Repeat("7,", 1000) + `7]}`, `{"model":"m","token_ids":[` + strings.Repeat("7,", 999) + `7]}`,
		`{"model":"m","hashes":[1.]}`, `{"model":"m","hashes":[1e]}`, `{"model":"m","hashes":[-]}`, `{"model":"m","hashes":[00000000000000000000000]}`,
		`{"model":"m","hashes":[184467440737095516150]}`, `{"model":"m","hashes":[99999999999999999999]}`, `{"model":"m","hashes":["-5","1.5","x"]}`,
	}
}

func TestParseAgreesWithEncodingJSON(t *testing.T) {
	for _, body := range corpus() {
		compare(t, []byte(body))
		for cut := range body { // every prefix, and every body with a byte left out
			compare(t, []byte(body[:cut]))
			if len(body) < 200 {
				compare(t, []byte(body[:cut]+body[cut+1:]))
			}
		}
	}
}

func TestParseForgetsTheRequestBefore(t *testing.T) {
	var r findRequest
	if p := r.parse([]byte(`{"model":"m\n","group":"g","token_ids":[1,2],"block_size":16,"max_blocks":3,"cache_salt":"s"}`), 10); p != nil {
		t.Fatal(p)
	}
	if p := r.parse([]byte(`{"model":"n","hashes":[5]}`), 10); p != nil {
		t.Fatal(p)
	}
	want := parsed{Model: "n", Hashes: []uint64{5}, Has: fieldModel | fieldHashes}
	if got := r.parsed(); !want.equal(got) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestParseAllocatesNothingOnceWarm(t *testing.T) {
	var r findRequest
	body := []byte(`{"model":"m\u0041","group":"g","token_ids":[` + strings.Repeat("128000, ", 999) + `1]}`)
	if n := testing.AllocsPerRun(100, func() {
		if p := r.parse(body, 1000); p != nil {
			t.Fatal(p)
		}
	}); n != 0 {
		t.Errorf("%v allocations a request", n)
	}
}

func FuzzParse(f *testing.F) {
	for _, body := range corpus() {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) { compare(t, body) })
}

func BenchmarkParse(b *testing.B) {
	for _, bench := range []struct {
		name, field, element string
		n                    int
	}{
		{"hashes=64", "hashes", "17446744073709551615", 64},
		{"hashes=512", "hashes", "17446744073709551615", 512},
		{"tokens=8192", "token_ids", "128256", 8192},
	} {
		b.Run(bench.name, func(b *testing.B) {
			body := []byte(`{"model":"m","` + bench.field + `":[` + strings.Repeat(bench.element+",", bench.n-1) + bench.element + `]}`)
			var r findRequest
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if p := r.parse(body, bench.n); p != nil {
					b.Fatal(p)
				}
			}
		})
	}
}
