// Bench measures usher on one machine, beside what people would use instead:
//
//	go run ./bench                                   # all of it, half an hour
//	go run ./bench -quick                            # a few minutes; figures scatter more
//	go run ./bench -only inbound -o bench/RESULTS.md # the other parts of the file stay as they are
//
// It builds usher and runs it as a process. What is compared is measured in turns, several rounds of it, and a
// figure is the median of its rounds: on a machine where other things run too, two figures of different runs say
// little about each other. Nothing fails because something was slow. Webhooks that are lost or out of order are
// an error.
//
// Outbound, what is measured has one core, and the load and the service another. Inbound, the senders and
// the receiver are this process, and PostgreSQL is a server that it starts and removes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"
)

// A part is measured by itself, and is a section of the results.
type part struct {
	name string
	run  func(context.Context, *bench) ([]*table, error)
}

var parts = []part{
	{"Outbound", outbound},
	{"Inbound", inbound},
	{"Recovery", recovery},
	{"Changes", changes},
	{"Growth", growth},
}

// bench is what all parts have in common.
type bench struct {
	quick bool
	loud  bool   // show usher's log
	dir   string // temporary, on the disk that is measured
	usher string // the binary
}

// pick returns the figure for a quick run, or that for a full one.
func pick[T any](b *bench, quick, full T) T {
	if b.quick {
		return quick
	}
	return full
}

// say tells how far the run is. Only the results are on standard output.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

func main() {
	var err error
	if len(os.Args) == 5 && os.Args[1] == loadRole {
		err = makeLoad(os.Args[2], os.Args[3], os.Args[4])
	} else if len(os.Args) == 4 && os.Args[1] == serviceRole {
		go func() { // until the bench is gone
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(1)
		}()
		err = serveService(os.Args[2], os.Args[3])
	} else {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		err = run(ctx)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	b := new(bench)
	flag.BoolVar(&b.quick, "quick", false, "take less time; the figures scatter more")
	flag.BoolVar(&b.loud, "v", false, "show usher's log, which slows it down")
	flag.StringVar(&b.dir, "dir", os.TempDir(), "a folder on the `disk` that is measured")
	only := flag.String("only", "", "measure this `part` alone: outbound, inbound, recovery, changes or growth")
	output := flag.String("o", "", "also write the results into this `file`, in place of the same parts")
	flag.Parse()
	chosen := slices.DeleteFunc(slices.Clone(parts), func(p part) bool {
		return *only != "" && !strings.EqualFold(*only, p.name)
	})
	if len(chosen) == 0 || flag.NArg() > 0 {
		return errors.New("no such part or argument: -h says what can be measured")
	}
	machine := describe(b.dir)
	dir, err := os.MkdirTemp(b.dir, "usher-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b.dir = dir
	if b.usher, err = build(ctx, dir, "usher"); err != nil {
		return err
	}
	var failed []error
	for _, p := range chosen {
		s := section{name: p.name, facts: []string{versionOf(ctx, b.usher), machine, "load " + busy()}}
		if b.quick {
			s.facts = append(s.facts, "with -quick")
		}
		s.began = time.Now()
		if s.tables, err = p.run(ctx, b); err == nil {
			fmt.Println(s.markdown())
			if *output != "" {
				err = s.writeTo(*output)
			}
		}
		if err != nil { // the other parts may work
			failed = append(failed, fmt.Errorf("%s: %w", strings.ToLower(p.name), err))
		}
	}
	return errors.Join(failed...)
}
