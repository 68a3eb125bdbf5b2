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

// part is one part of what is measured, and a section of the results.
type part struct {
	name string
	run  func(context.Context, *bench) ([]*table, error)
}

const (
	outboundPart = "Outbound"
	growthPart   = "Growth" // takes long, so only if it is asked for
)

var parts = []part{
	{outboundPart, outbound},
	{"Inbound", inbound},
	{"Receivers", severalReceivers},
	{"Limits", limits},
	{"Checks", checks},
	{"Changes", changes},
	{growthPart, growth},
}

// bench is what all parts have in common.
type bench struct {
	quick   bool
	dir     string // temporary, on the disk that is to be measured
	usher   string // the binary
	plot    string // a file to draw growth into; empty: none
	senders int    // inbound; zero: several numbers of them
	beside  string // another binary, an usher of before; empty: none
	log     string // usher's log level
	loud    bool   // show usher's log
	rounds  int    // of what is measured in turns outbound; zero: as many as usual
}

// pick is the figure for a quick run, or that for a full one.
func pick[T any](b *bench, quick, full T) T {
	if b.quick {
		return quick
	}
	return full
}

// say tells how far the run is. The results are on standard output alone.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

func main() {
	var err error
	if len(os.Args) == 3 && roles[os.Args[1]] != nil {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // until who started this is gone
			os.Exit(1)
		}()
		err = roles[os.Args[1]]([]byte(os.Args[2]))
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

// longest is the end of every run, whatever hangs.
const longest = 90 * time.Minute

func run(ctx context.Context) error {
	b := new(bench)
	flag.BoolVar(&b.quick, "quick", false, "two minutes instead of twenty; the figures scatter more")
	flag.StringVar(&b.dir, "dir", os.TempDir(), "a folder on the `disk` that is to be measured")
	flag.StringVar(&b.usher, "usher", "", "measure this `binary`; by default the one of this module is built")
	flag.StringVar(&b.log, "log", "info", "usher's log `level`; its lines go to the null device")
	flag.BoolVar(&b.loud, "v", false, "show usher's log, which slows it down")
	flag.IntVar(&b.rounds, "rounds", 0, "take `n` readings of each outbound figure; by default 8, or 1 with -quick")
	flag.StringVar(&b.beside, "beside", "", "measure this `binary`, an usher of before, as one more beside usher")
	flag.IntVar(&b.senders, "senders", 0, "inbound, so `many` alone; by default 1 and 64")
	flag.StringVar(&b.plot, "plot", "", "draw growth into this SVG `file`")
	only := flag.String("only", "",
		"measure this `part` alone: outbound, inbound, receivers, limits, checks, changes or growth; "+
			"the last only if it is asked for")
	output := flag.String("o", "",
		"write the results to this `file` as well; of one that is there, only the parts that are measured change")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("there are no arguments, but there is %q", flag.Arg(0))
	}
	if b.beside != "" {
		peers = slices.Insert(peers, 1, peer{name: before, command: beforeCommand(b.beside)})
	}
	chosen := slices.DeleteFunc(slices.Clone(parts), func(p part) bool {
		return *only == "" && p.name == growthPart || *only != "" && !strings.EqualFold(*only, p.name)
	})
	if len(chosen) == 0 {
		return fmt.Errorf("there is no part %q: -h names them", *only)
	}
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()

	machine := describe(b.dir)
	dir, err := os.MkdirTemp(b.dir, "usher-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b.dir = dir
	if b.usher == "" {
		if b.usher, err = build(ctx, dir, "usher"); err != nil {
			return err
		}
	}
	var failed []error
	for _, p := range chosen {
		s := section{name: p.name, began: time.Now(), facts: []string{
			strings.TrimPrefix(versionOf(ctx, b.usher), "usher (devel), "),
			machine,
			"load " + busy(),
		}}
		if args := shownArgs(); len(args) > 0 {
			s.facts = append(s.facts, "with "+strings.Join(args, " "))
		}
		if b.beside != "" {
			s.facts = append(s.facts, before+": "+versionOf(ctx, b.beside))
		}
		// What is done stays, whatever becomes of the next.
		if s.tables, err = p.run(ctx, b); err == nil {
			fmt.Println(s.markdown(true))
			if *output != "" {
				err = s.writeTo(*output)
			}
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", strings.ToLower(p.name), err))
		}
	}
	return errors.Join(failed...)
}

// shownArgs is the command line, less where its results go and less paths of this
// machine: the latter are described with the disk.
func shownArgs() []string {
	var args []string
	flag.Visit(func(f *flag.Flag) {
		switch {
		case f.Name == "beside":
			args = append(args, "-beside OLD")
		case f.Name == "o", f.Name == "plot", f.Name == "dir", f.Name == "usher", f.Name == "only":
		case f.Value.String() == "true":
			args = append(args, "-"+f.Name)
		default:
			args = append(args, "-"+f.Name+" "+f.Value.String())
		}
	})
	return args
}
