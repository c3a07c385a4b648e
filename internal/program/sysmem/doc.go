// Package sysmem tells how much memory the process may use: the machine's, or
// less where its control groups limit it. It reads files of Linux; elsewhere
// the answer is unknown.
package sysmem
