package extproc

import "google.golang.org/grpc/mem"

// Service is the service's name, and Process its only method's.
const (
	Service = "envoy.service.ext_proc.v3.ExternalProcessor"
	Process = "Process"
)

// Kind says what of an exchange a message is about.
type Kind uint8

// The kinds, and Immediate for an answer in place of the engine's.
const (
	None Kind = iota
	RequestHeaders
	RequestBody
	RequestTrailers
	ResponseHeaders
	ResponseBody
	ResponseTrailers
	Immediate
)

// Mode is how a gateway sends bodies.
type Mode uint8

// The modes, by their numbers in envoy.extensions.filters.http.ext_proc.v3.ProcessingMode.
const (
	ModeNone Mode = iota
	ModeStreamed
	ModeBuffered
	ModeBufferedPartial
	ModeFullDuplex
	ModeGRPC
)

// The names under which endpoints are told, by the endpoint picker protocol.
const (
	SubsetSpace = "envoy.lb.subset_hint"
	SubsetKey   = "x-gateway-destination-endpoint-subset"
	Space       = "envoy.lb"
	EndpointKey = "x-gateway-destination-endpoint" // a header, too
	ScoresKey   = "x-gateway-destination-endpoint-scores"
	ServedKey   = "x-gateway-destination-endpoint-served"
)

// attributes is under which name Envoy sends those that its settings ask for, and sourceKey
// the one of them that is read: the address of the client's connection.
const (
	attributes = "envoy.filters.http.ext_proc"
	sourceKey  = "source.address"
)

// Header is one header; names of pseudo headers begin with a colon.
type Header struct{ Name, Value string }

// Request is a message of the gateway.
type Request struct {
	Kind    Kind
	Headers []Header // of headers and trailers
	Body    []byte   // until Release
	End     bool     // nothing follows in that direction

	// Subset, if Subsets is set, is what may be chosen from.
	Subset  []string
	Subsets bool
	Served  string // the endpoint that has answered; "" is not said
	Source  string // the client's address, ip:port; "" is not said
	// Modes, if HasModes is set, are those of bodies. A gateway says them once.
	RequestMode, ResponseMode Mode
	HasModes                  bool
	Observes                  bool // nobody waits for an answer

	buffer mem.Buffer
	room   int // what heads and metadata may still take
}

// Release gives the memory of the message back.
func (r *Request) Release() {
	if r.buffer != nil {
		r.buffer.Free()
	}
	*r = Request{}
}

// Score is what the choice made of an endpoint, higher is better.
type Score struct {
	Endpoint string
	Score    float64
}

// Response is a message of the picker. Its zero value but for Kind lets the exchange go on.
type Response struct {
	Kind     Kind
	Set      []Header // in place of those of that name
	Remove   []string
	Reroute  bool // routes are matched anew, with these headers
	Streamed bool // Body is a part of the body, as End says; else Body is in place of all of it if Replace is set
	Replace  bool
	Body     []byte // of a Response that was read: until Release
	End      bool
	Status   int // of Immediate
	Details  string

	Endpoint string // where the request goes, in dynamic metadata; "" is not said
	Scores   []Score

	buffer mem.Buffer
}

// Release gives the memory of the message back, if it was read.
func (r *Response) Release() {
	if r.buffer != nil {
		r.buffer.Free()
	}
	*r = Response{}
}

// HealthRequest is that of grpc.health.v1.Health/Check.
type HealthRequest struct{ Service string }

// HealthResponse is its answer.
type HealthResponse struct{ Status Serving }

// Serving is a service's health.
type Serving uint8

// The states, by their numbers in grpc.health.v1.HealthCheckResponse.
const (
	IsServing  Serving = 1
	NotServing Serving = 2
)
