// Package proc is the frame of every program of kvatlas: settings, log,
// signals and exit code.
//
// Invariants:
//   - The first SIGINT, SIGTERM or SIGHUP cancels the program's context; the second
//     one ends the process at once with 128 plus the signal's number. Signals
//     within a moment of the first are its echo: a terminal signals all
//     processes of a command, and so may the parent among them once more.
//   - Exit codes: 0 for an orderly end, also of what a signal has cut short, 1 for a
//     failure, 2 for wrong use.
//
// Ownership: [Main] owns the signals from its call to its return.
package proc
