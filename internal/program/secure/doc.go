// Package secure decides who may talk to an HTTP server: bearer tokens, TLS
// with or without client certificates, and where a server may listen without
// either.
//
// Invariants:
//   - Tokens are compared by their SHA-256 in constant time, every one of them
//     for each request; their text is kept nowhere and never logged.
//   - Files are looked at again while they are in use, at most once a second:
//     a changed one takes effect for the next request or handshake, and a
//     damaged one leaves the last good content in force and says so.
//   - A server that listens beyond loopback has tokens or client certificates,
//     unless it is told to do without.
//
// Ownership: an Access owns what it has read; servers only ask it.
package secure
