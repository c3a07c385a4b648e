// Package lint holds the project's own rules, as ordinary Go tests over the
// syntax of every file of the module: see lint_test.go.
//
// Invariants:
//   - Rules look at files, never at build results, so that they hold for every
//     build tag and platform.
//   - Each rule is itself tested on source that breaks it.
//
// Ownership: nothing here runs outside tests.
package lint
