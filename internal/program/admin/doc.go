// Package admin is the port for who runs a program: metrics, profiles, the
// settings in force, and what can be changed while it runs.
//
// Invariants:
//   - It listens on loopback unless told otherwise, apart from the port that
//     clients ask.
//   - With tokens, all but health and version need an operator's, or for
//     metrics a reader's, that is no tenant's.
//   - Pages of other sites change nothing, and without tokens read nothing but what
//     anybody may.
//   - Secrets are masked.
//   - The port for probes, which anybody may ask, says yes or no and nothing else.
//
// Ownership: a Server owns its listeners and their connections.
package admin
