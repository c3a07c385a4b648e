package extproc

import (
	"math"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

func appendFlag(b []byte, number protowire.Number, is bool) []byte {
	if !is {
		return b
	}
	return appendNumber(b, number, 1)
}

func appendNumber(b []byte, number protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), v)
}

func appendText[T string | []byte](b []byte, number protowire.Number, text T) []byte {
	b = protowire.AppendVarint(protowire.AppendTag(b, number, protowire.BytesType), uint64(len(text)))
	return append(b, text...)
}

// lengthRoom is how many bytes the length of a message is written in before it is known:
// protobuf takes a number with zeroes behind it. It is for 256 MiB.
const lengthRoom = 4

// appendMessage appends a message that f appends.
func appendMessage(b []byte, number protowire.Number, f func([]byte) []byte) []byte {
	b = protowire.AppendTag(b, number, protowire.BytesType)
	at := len(b)
	b = f(append(b, 0, 0, 0, 0))
	n := len(b) - at - lengthRoom
	for i := range lengthRoom {
		b[at+i] = byte(n>>(7*i))&0x7f | 0x80
	}
	b[at+lengthRoom-1] &= 0x7f
	return b
}

// append writes a ProcessingRequest.
func (r *Request) append(b []byte) []byte {
	switch r.Kind {
	case RequestHeaders:
		b = r.appendHeaders(b, 2)
	case ResponseHeaders:
		b = r.appendHeaders(b, 3)
	case RequestBody:
		b = r.appendBody(b, 4)
	case ResponseBody:
		b = r.appendBody(b, 5)
	case RequestTrailers:
		b = r.appendTrailers(b, 6)
	case ResponseTrailers:
		b = r.appendTrailers(b, 7)
	}
	if r.Served != "" || r.Subsets {
		b = appendMessage(b, 8, r.appendMetadata)
	}
	if r.Source != "" {
		b = appendMessage(b, 9, func(b []byte) []byte {
			b = appendText(b, 1, attributes)
			return appendMessage(b, 2, func(b []byte) []byte {
				return appendMember(b, sourceKey, func(b []byte) []byte { return appendText(b, 3, r.Source) })
			})
		})
	}
	b = appendFlag(b, 10, r.Observes)
	if r.HasModes {
		b = appendMessage(b, 11, func(b []byte) []byte {
			return appendNumber(appendNumber(b, 1, uint64(r.RequestMode)), 2, uint64(r.ResponseMode))
		})
	}
	return b
}

func (r *Request) appendHeaders(b []byte, number protowire.Number) []byte {
	return appendMessage(b, number, func(b []byte) []byte {
		b = appendMessage(b, 1, func(b []byte) []byte { return appendHeaders(b, r.Headers) })
		return appendFlag(b, 3, r.End)
	})
}

func (r *Request) appendBody(b []byte, number protowire.Number) []byte {
	return appendMessage(b, number, func(b []byte) []byte { return appendFlag(appendText(b, 1, r.Body), 2, r.End) })
}

func (r *Request) appendTrailers(b []byte, number protowire.Number) []byte {
	return appendMessage(b, number, func(b []byte) []byte {
		return appendMessage(b, 1, func(b []byte) []byte { return appendHeaders(b, r.Headers) })
	})
}

func (r *Request) appendMetadata(b []byte) []byte {
	space := func(b []byte, name, key string, value func([]byte) []byte) []byte {
		return appendMessage(b, 1, func(b []byte) []byte {
			b = appendText(b, 1, name)
			return appendMessage(b, 2, func(b []byte) []byte { return appendMember(b, key, value) })
		})
	}
	if r.Served != "" {
		b = space(b, Space, ServedKey, func(b []byte) []byte { return appendText(b, 3, r.Served) })
	}
	if r.Subsets {
		b = space(b, SubsetSpace, SubsetKey, func(b []byte) []byte {
			return appendMessage(b, 6, func(b []byte) []byte {
				for _, one := range r.Subset {
					b = appendMessage(b, 1, func(b []byte) []byte { return appendText(b, 3, one) })
				}
				return b
			})
		})
	}
	return b
}

// appendMember appends a member of a google.protobuf.Struct, whose Value value appends.
func appendMember(b []byte, key string, value func([]byte) []byte) []byte {
	return appendMessage(b, 1, func(b []byte) []byte { return appendMessage(appendText(b, 1, key), 2, value) })
}

// appendHeaders appends the fields of a HeaderMap.
func appendHeaders(b []byte, list []Header) []byte {
	for _, h := range list {
		b = appendMessage(b, 1, func(b []byte) []byte { return appendText(appendText(b, 1, h.Name), 3, h.Value) })
	}
	return b
}

// append writes a ProcessingResponse.
func (r *Response) append(b []byte) []byte {
	switch r.Kind {
	case RequestHeaders:
		b = r.appendCommon(b, 1)
	case ResponseHeaders:
		b = r.appendCommon(b, 2)
	case RequestBody:
		b = r.appendCommon(b, 3)
	case ResponseBody:
		b = r.appendCommon(b, 4)
	case RequestTrailers:
		b = appendMessage(b, 5, same)
	case ResponseTrailers:
		b = appendMessage(b, 6, same)
	case Immediate:
		b = appendMessage(b, 7, func(b []byte) []byte {
			b = appendMessage(b, 1, func(b []byte) []byte { return appendNumber(b, 1, uint64(r.Status)) })
			b = appendMessage(b, 2, r.appendMutation)
			b = appendText(b, 3, r.Body)
			return appendText(b, 5, r.Details)
		})
	}
	if r.Endpoint != "" {
		b = appendMessage(b, 8, func(b []byte) []byte {
			return appendMember(b, Space, func(b []byte) []byte { return appendMessage(b, 5, r.appendTold) })
		})
	}
	return b
}

func same(b []byte) []byte { return b }

// appendTold appends what the dynamic metadata says.
func (r *Response) appendTold(b []byte) []byte {
	b = appendMember(b, EndpointKey, func(b []byte) []byte { return appendText(b, 3, r.Endpoint) })
	if len(r.Scores) == 0 {
		return b
	}
	return appendMember(b, ScoresKey, func(b []byte) []byte {
		return appendMessage(b, 5, func(b []byte) []byte {
			for _, s := range r.Scores {
				b = appendMember(b, s.Endpoint, func(b []byte) []byte {
					return protowire.AppendFixed64(protowire.AppendTag(b, 2, protowire.Fixed64Type), math.Float64bits(s.Score))
				})
			}
			return b
		})
	})
}

// appendCommon appends a message with a CommonResponse.
func (r *Response) appendCommon(b []byte, number protowire.Number) []byte {
	return appendMessage(b, number, func(b []byte) []byte {
		return appendMessage(b, 1, func(b []byte) []byte {
			if len(r.Set)+len(r.Remove) > 0 {
				b = appendMessage(b, 2, r.appendMutation)
			}
			switch {
			case r.Streamed:
				b = appendMessage(b, 3, func(b []byte) []byte {
					return appendMessage(b, 3, func(b []byte) []byte { return appendFlag(appendText(b, 1, r.Body), 2, r.End) })
				})
			case r.Replace:
				b = appendMessage(b, 3, func(b []byte) []byte { return appendText(b, 1, r.Body) })
			}
			return appendFlag(b, 5, r.Reroute)
		})
	})
}

// overwrite is HeaderValueOption's OVERWRITE_IF_EXISTS_OR_ADD.
const overwrite = 2

// appendMutation appends the fields of a HeaderMutation. Envoy's names are in small letters.
func (r *Response) appendMutation(b []byte) []byte {
	for _, h := range r.Set {
		b = appendMessage(b, 1, func(b []byte) []byte {
			b = appendMessage(b, 1, func(b []byte) []byte {
				return appendText(appendText(b, 1, strings.ToLower(h.Name)), 3, h.Value)
			})
			return appendNumber(b, 3, overwrite)
		})
	}
	for _, name := range r.Remove {
		b = appendText(b, 2, strings.ToLower(name))
	}
	return b
}

func (h *HealthRequest) append(b []byte) []byte { return appendText(b, 1, h.Service) }

func (h *HealthResponse) append(b []byte) []byte { return appendNumber(b, 1, uint64(h.Status)) }
