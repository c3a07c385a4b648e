// Package api holds the descriptions of the HTTP interfaces of kvindexer, of
// kvrouter and of all programs' admin ports, in OpenAPI 3.1.
//
// Invariant: tests of the servers compare their routes with the documents',
// both ways, and what they take and answer with their schemas.
//
// Ownership: the documents are constant.
package api
