// Package disk makes names in a directory last beyond a loss of power.
//
// Invariant: [SyncDir] is called after a file was created, renamed or removed, where it is to
// be found so after the machine lost power.
package disk
