package jinja

import "fmt"

// Error is what a template, or Python in its place, raises: rendered by the engine it
// fails as well.
type Error struct{ Msg string }

func (e *Error) Error() string { return e.Msg }

// RaisedError is what a template says with raise_exception: meant for who sent the request.
type RaisedError struct{ Msg string }

func (e *RaisedError) Error() string { return e.Msg }

// UnsupportedError names what this package does not do as Python does: another must render it.
type UnsupportedError struct{ What string }

func (e *UnsupportedError) Error() string { return "not supported: " + e.What }

// LimitError says which bound a render reached.
type LimitError struct{ What string }

func (e *LimitError) Error() string { return "the template needs " + e.What }

func typeErr(format string, args ...any) error { return &Error{fmt.Sprintf(format, args...)} }

// undefErr is the use of something undefined.
func undefErr(v Value) error {
	if v.s == "" {
		return &Error{"an undefined value is used"}
	}
	return &Error{v.s + " is undefined"}
}
