// Package decisions answers for the choices of workers that are kept (package account), over
// HTTP: as kvrouter does at /v1/decisions, and for whoever has the library.
//
// A caller with a group sees its own group's. No text, token or hash of a prompt is in them.
package decisions
