// Package api holds the description of the HTTP interfaces of kvindexer and
// kvrouter, in OpenAPI 3.1.
//
// Invariant: tests of the servers compare their routes with the document's,
// both ways, and what they take and answer with its schemas.
//
// Ownership: the document is constant.
package api
