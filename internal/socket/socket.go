// Package socket makes the connections of a process that waits most of the time
// cheaper.
//
// Around each system call Go's runtime does some bookkeeping, so that it can let other
// goroutines run if the call should block. When everything was idle before, it also
// wakes the thread that keeps watch over such calls, which goes to sleep again as soon
// as everything is idle: for a proxy that has a call now and then, that is twice per
// call, and as much work for the scheduler of the kernel as the call itself (about an
// eighth of usher's CPU time at one connection). But reads and writes of a socket never
// block, as the runtime has it in non-blocking mode and waits elsewhere, so they can do
// without.
package socket
