package extproc

import (
	"math"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// field is one field of a message: a number, or bytes.
type field struct {
	number protowire.Number
	bytes  []byte
	value  uint64
	fixed  bool // value is eight bytes
}

// each calls f with every field of a message. Groups, which proto3 has not, and fixed numbers
// of four bytes are passed over.
func each(data []byte, f func(field) error) error {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return ErrMalformed
		}
		data = data[n:]
		is := field{number: number}
		switch kind {
		case protowire.BytesType:
			is.bytes, n = protowire.ConsumeBytes(data)
		case protowire.VarintType:
			is.value, n = protowire.ConsumeVarint(data)
		case protowire.Fixed64Type:
			is.value, n = protowire.ConsumeFixed64(data)
			is.fixed = true
		default:
			if n = protowire.ConsumeFieldValue(number, kind, data); n >= 0 {
				data = data[n:]
				continue
			}
		}
		if n < 0 {
			return ErrMalformed
		}
		data = data[n:]
		if err := f(is); err != nil {
			return err
		}
	}
	return nil
}

// requestKinds are by the numbers of ProcessingRequest.
var requestKinds = [...]Kind{2: RequestHeaders, 3: ResponseHeaders, 4: RequestBody, 5: ResponseBody, 6: RequestTrailers, 7: ResponseTrailers}

// read takes a ProcessingRequest.
func (r *Request) read(data []byte) error {
	*r = Request{room: r.room}
	defer func() { r.room = 0 }()
	return each(data, func(f field) error {
		if f.number != 4 && f.number != 5 {
			if err := r.spend(len(f.bytes)); err != nil {
				return err
			}
		}
		switch f.number {
		case 2, 3:
			r.Kind, r.Headers, r.Body, r.End = requestKinds[f.number], nil, nil, false
			return each(f.bytes, func(f field) (err error) {
				switch f.number {
				case 1:
					r.Headers, err = r.headers(f.bytes)
				case 3:
					r.End = f.value != 0
				}
				return err
			})
		case 4, 5:
			r.Kind, r.Headers, r.Body, r.End = requestKinds[f.number], nil, []byte{}, false
			return each(f.bytes, func(f field) error {
				switch f.number {
				case 1:
					r.Body = f.bytes
				case 2, 3:
					r.End = r.End || f.value != 0
				}
				return nil
			})
		case 6, 7:
			r.Kind, r.Headers, r.Body, r.End = requestKinds[f.number], nil, nil, true
			return each(f.bytes, func(f field) (err error) {
				if f.number == 1 {
					r.Headers, err = r.headers(f.bytes)
				}
				return err
			})
		case 8:
			return each(f.bytes, r.metadata)
		case 9:
			return entry(f, func(name string, value []byte) error {
				if name != attributes {
					return nil
				}
				return structure(value, func(key string, v worth) error {
					if key == sourceKey {
						r.Source = v.text
					}
					return nil
				})
			})
		case 10:
			r.Observes = f.value != 0
		case 11:
			r.HasModes = true
			return each(f.bytes, func(f field) error {
				switch f.number {
				case 1:
					r.RequestMode = Mode(min(f.value, math.MaxUint8))
				case 2:
					r.ResponseMode = Mode(min(f.value, math.MaxUint8))
				}
				return nil
			})
		}
		return nil
	})
}

// metadata reads a field of an envoy.config.core.v3.Metadata.
func (r *Request) metadata(f field) error {
	if f.number != 1 {
		return nil
	}
	return entry(f, func(name string, data []byte) error {
		if name != SubsetSpace && name != Space {
			return nil
		}
		return structure(data, func(key string, v worth) error {
			switch {
			case name == Space && key == ServedKey:
				r.Served = v.text
			case name == SubsetSpace && key == SubsetKey:
				r.Subsets = true
				for _, list := range append(v.list, v.text) {
					for one := range strings.SplitSeq(list, ",") {
						if err := r.spend(overhead); err != nil {
							return err
						}
						if one = strings.TrimSpace(one); one != "" {
							r.Subset = append(r.Subset, one)
						}
					}
				}
			}
			return nil
		})
	})
}

// readHeaders reads an envoy.config.core.v3.HeaderMap.
// overhead is what each item of a list counts for beside its bytes.
const overhead = 32

// spend books n bytes that are no body's.
func (r *Request) spend(n int) error {
	if r.room -= n; r.room < 0 {
		return ErrTooLarge
	}
	return nil
}

func (r *Request) headers(data []byte) (list []Header, err error) {
	err = each(data, func(f field) error {
		if f.number != 1 {
			return nil
		}
		if err := r.spend(overhead); err != nil {
			return err
		}
		h, err := readHeader(f.bytes)
		list = append(list, h)
		return err
	})
	return list, err
}

// readHeader reads a HeaderValue.
func readHeader(data []byte) (h Header, err error) {
	err = each(data, func(f field) error {
		switch {
		case f.number == 1:
			h.Name = string(f.bytes)
		case f.number == 2 && len(f.bytes) > 0, f.number == 3 && len(f.bytes) > 0: // one of both is empty
			h.Value = string(f.bytes)
		}
		return nil
	})
	return h, err
}

// entry reads an entry of a map by names.
func entry(f field, take func(name string, value []byte) error) error {
	var name string
	var value []byte
	err := each(f.bytes, func(f field) error {
		switch f.number {
		case 1:
			name = string(f.bytes)
		case 2:
			value = f.bytes
		}
		return nil
	})
	if err != nil {
		return err
	}
	return take(name, value)
}

// worth is a google.protobuf.Value: what of it is looked at.
type worth struct {
	text   string
	number float64
	list   []string // the texts of it
	object []byte
}

// structure reads the members of a google.protobuf.Struct.
func structure(data []byte, take func(key string, v worth) error) error {
	return each(data, func(f field) error {
		if f.number != 1 {
			return nil
		}
		return entry(f, func(key string, data []byte) error {
			v, err := readValue(data)
			if err != nil {
				return err
			}
			return take(key, v)
		})
	})
}

func readValue(data []byte) (v worth, err error) {
	err = each(data, func(f field) error {
		switch f.number {
		case 2:
			v.number = math.Float64frombits(f.value)
		case 3:
			v.text = string(f.bytes)
		case 5:
			v.object = f.bytes
		case 6:
			return each(f.bytes, func(f field) error {
				if f.number != 1 {
					return nil
				}
				return each(f.bytes, func(f field) error { // a list in it is none of texts
					if f.number == 3 {
						v.list = append(v.list, string(f.bytes))
					}
					return nil
				})
			})
		}
		return nil
	})
	return v, err
}

// responseKinds are by the numbers of ProcessingResponse.
var responseKinds = [...]Kind{1: RequestHeaders, 2: ResponseHeaders, 3: RequestBody, 4: ResponseBody, 5: RequestTrailers, 6: ResponseTrailers, 7: Immediate}

// read takes a ProcessingResponse.
func (r *Response) read(data []byte) error {
	*r = Response{}
	return each(data, func(f field) error {
		switch f.number {
		case 1, 2, 3, 4:
			r.Kind = responseKinds[f.number]
			return each(f.bytes, func(f field) error {
				if f.number != 1 {
					return nil
				}
				return each(f.bytes, r.common)
			})
		case 5, 6:
			r.Kind = responseKinds[f.number]
		case 7:
			r.Kind = Immediate
			return each(f.bytes, r.immediate)
		case 8:
			return structure(f.bytes, func(key string, v worth) error {
				if key != Space {
					return nil
				}
				return structure(v.object, r.told)
			})
		}
		return nil
	})
}

// common reads a field of a CommonResponse.
func (r *Response) common(f field) error {
	switch f.number {
	case 2:
		return each(f.bytes, r.mutation)
	case 3:
		return each(f.bytes, func(f field) error {
			switch f.number {
			case 1:
				r.Replace, r.Body = true, f.bytes
			case 3:
				r.Streamed, r.Body = true, []byte{}
				return each(f.bytes, func(f field) error {
					switch f.number {
					case 1:
						r.Body = f.bytes
					case 2:
						r.End = f.value != 0
					}
					return nil
				})
			}
			return nil
		})
	case 5:
		r.Reroute = f.value != 0
	}
	return nil
}

// mutation reads a field of a HeaderMutation.
func (r *Response) mutation(f field) error {
	switch f.number {
	case 1:
		return each(f.bytes, func(f field) error {
			if f.number != 1 {
				return nil
			}
			h, err := readHeader(f.bytes)
			r.Set = append(r.Set, h)
			return err
		})
	case 2:
		r.Remove = append(r.Remove, string(f.bytes))
	}
	return nil
}

// immediate reads a field of an ImmediateResponse.
func (r *Response) immediate(f field) error {
	switch f.number {
	case 1:
		return each(f.bytes, func(f field) error {
			if f.number == 1 {
				r.Status = int(min(f.value, math.MaxInt16))
			}
			return nil
		})
	case 2:
		return each(f.bytes, r.mutation)
	case 3:
		r.Body = f.bytes
	case 5:
		r.Details = string(f.bytes)
	}
	return nil
}

// told reads a member of the dynamic metadata.
func (r *Response) told(key string, v worth) error {
	switch key {
	case EndpointKey:
		r.Endpoint = v.text
	case ScoresKey:
		return structure(v.object, func(endpoint string, v worth) error {
			r.Scores = append(r.Scores, Score{endpoint, v.number})
			return nil
		})
	}
	return nil
}

func (h *HealthRequest) read(data []byte) error {
	*h = HealthRequest{}
	return each(data, func(f field) error {
		if f.number == 1 {
			h.Service = string(f.bytes)
		}
		return nil
	})
}

func (h *HealthResponse) read(data []byte) error {
	*h = HealthResponse{}
	return each(data, func(f field) error {
		if f.number == 1 {
			h.Status = Serving(min(f.value, math.MaxUint8))
		}
		return nil
	})
}
