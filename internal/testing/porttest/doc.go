// Package porttest finds ports for servers that tests start, or start again, at a port that
// is known before they listen.
//
// Invariant: the ports are below those that systems give out on their own, so that neither a
// connection nor a listener that asked for any port takes one before its server has it, or while
// its server is away.
//
// Ownership: it keeps nothing; another process may ask for the same ports by their numbers.
package porttest
