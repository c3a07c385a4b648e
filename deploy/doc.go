// Package deploy tests what is in this folder: the image's programs, the compose
// file, the systemd units, the Helm chart, the dashboard and the alert rules.
//
// Invariants:
//   - Every setting that a file here gives is one that its program accepts.
//   - Every metric that the dashboard or an alert names is one that a running
//     program exposes, if only by its HELP line; every alert is explained in
//     docs/operations.md.
//
// Ownership: the tests own the programs that they build and start.
package deploy
