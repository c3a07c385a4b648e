// Package mptest writes msgpack for tests, in the widest forms rather than the
// shortest ones.
package mptest
