// Bench measures usher beside what people would use instead, and beside an usher of
// before, on one machine and in one run:
//
//	go run ./bench                                   # all of it, 20 minutes at most
//	go run ./bench -quick                            # two minutes; figures scatter more
//	go run ./bench -beside OLD -o bench/RESULTS.md   # beside another binary, into a file
//	go run ./bench -only inbound -o bench/RESULTS.md # one part; the others stay as they are
//
// It builds usher and runs it as a process. Inbound, the receiver and the senders are
// this process, and PostgreSQL is a server that it starts and removes. Outbound, usher and its
// peers have one core, each in its turn; the service and the load, processes too, share
// another. What is compared is measured in turns, several rounds of it, and a figure is
// the median of its rounds: on a machine where other things run too, two figures of
// different runs say little about each other. Nothing here fails because something was
// slow; calls that are refused and webhooks that are lost or out of order are said.
//
// The parts alone are measured by go test, in their packages. To compare two commits, run
// it on each and have benchstat (golang.org/x/perf/cmd/benchstat) look at both files:
//
//	go test -run '^$' -bench . -benchmem -cpu 1 -count 10 ./proxy ./tokens ./webhookgate/... ./internal/entitlements ./internal/guard > new.txt
//	benchstat old.txt new.txt
//
// BenchmarkInbox in internal/inbox measures the inbox alone. Growth (-only growth) takes an hour. The soak is
// a test here: go test ./bench -run Soak -soak 10m -timeout 20m -v.
package main
