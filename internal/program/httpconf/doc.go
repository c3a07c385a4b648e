// Package httpconf is the settings that every HTTP server of kvatlas has, so that
// one setting has one name in all programs.
//
// Invariant: a limit has a default that is safe for the program, never "none".
//
// Ownership: values only; a server reads them when it starts.
package httpconf
