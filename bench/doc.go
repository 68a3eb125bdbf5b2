// Bench measures usher beside what people would use instead, on one machine and in
// one run: go run ./bench, or go run ./bench -quick.
//
// It builds usher and runs it as a process. Inbound, the receiver and the senders are
// this process. Outbound, usher and its peers have one core, each in its turn; the
// service and the load, processes too, share another. What is compared is measured
// in turns, several rounds of it, and a figure is the median of its rounds: on a
// machine where other things run too, two figures of different runs say little about
// each other. Nothing here fails because something was slow; calls that are refused and
// webhooks that are lost or out of order are said.
package main
