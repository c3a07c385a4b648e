// Package sock reads and writes sockets without telling Go's scheduler.
//
// A socket of the runtime's never waits in the kernel, but what it sends over loopback the
// kernel delivers meanwhile, which wakes the other side and takes 10 µs and more. So long a
// system call looks to the runtime like one that waits: it hands the processor to another
// thread, and its monitor looks for such calls every 20 µs. For a server whose work is
// sockets that is a tenth of its time. Here the calls are made as the runtime makes its
// own, and the waiting is the runtime's as ever.
//
// Connections of a Listener are a server's, which puts a deadline off with each request: the
// runtime is told of it only when the earlier one is over. They read a little further than
// they are asked to, so that a request of 11 KB takes one call and not two.
//
// Invariants:
//   - What a Conn returns is what the net.Conn below it would.
//
// Ownership: one goroutine reads from a Conn at a time, and one writes to it.
package sock
