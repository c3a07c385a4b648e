// Package head reads the heads of HTTP/1.1 messages, in one way only: what servers
// disagree about is none.
//
// Invariants:
//   - What is returned of a text are parts of it.
//
// It holds no state. Its callers' fuzz targets hold it to net/http's parser.
package head
