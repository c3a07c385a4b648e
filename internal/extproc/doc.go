// Package extproc is the part of Envoy's external processing protocol
// (envoy.service.ext_proc.v3) that an endpoint picker speaks, and a gateway with it: its
// messages, as what they say, and a codec of gRPC that reads and writes them.
//
// Envoy's generated Go messages and what they import make a program larger by megabytes, and
// copy a body three times; of some two hundred messages fifteen are needed. Fields that are
// not needed are skipped, as protobuf means it.
//
// Invariants:
//   - What is written, Envoy's own definition reads, and the other way: field numbers are those
//     of envoy/service/ext_proc/v3/external_processor.proto.
//   - Reading takes memory in proportion to the message, whose size gRPC bounds.
//   - A body is a part of the message as it came: it stays until Release.
//
// Ownership: who receives a Request or a Response releases it.
package extproc
