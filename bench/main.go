package main

import (
	"context"
	"flag"
	"fmt"
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

var parts = []part{
	{"Outbound", outbound},
	{"Inbound", inbound},
	{"Receivers", severalReceivers},
	{"Micro", micro},
}

// bench is what all parts have in common.
type bench struct {
	quick  bool
	dir    string // temporary, on the disk that is to be measured
	usher  string // the binary
	log    string // usher's log level
	loud   bool   // show usher's log
	rounds int    // of what is measured in turns; zero: as many as usual
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
	if len(os.Args) > 1 {
		if role := roles[os.Args[1]]; role != nil {
			if err := role(os.Args[2:]); err != nil {
				fmt.Fprintln(os.Stderr, "bench "+os.Args[1]+":", err)
				os.Exit(1)
			}
			return
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// longest is the end of every run, whatever hangs.
const longest = 25 * time.Minute

func run(ctx context.Context) error {
	b := new(bench)
	flag.BoolVar(&b.quick, "quick", false, "two minutes instead of twenty; the figures scatter more")
	flag.StringVar(&b.dir, "dir", os.TempDir(), "a folder on the `disk` that is to be measured")
	flag.StringVar(&b.usher, "usher", "", "measure this `binary`; by default the one of this module is built")
	flag.StringVar(&b.log, "log", "info", "usher's log `level`; its lines go to the null device")
	flag.BoolVar(&b.loud, "v", false, "show usher's log, which slows it down")
	flag.IntVar(&b.rounds, "rounds", 0, "take `n` readings of each outbound figure; by default 11, or 1 with -quick")
	beside := flag.String("beside", "", "measure this `binary`, an usher of before, as one more beside usher")
	only := flag.String("only", "", "measure this `part` alone: outbound, inbound, receivers or micro")
	soak := flag.Duration("soak", 0, "measure nothing, but run traffic through faults for so `long`, and see whether all adds up")
	output := flag.String("o", "", "write the results to this `file` as well, as Markdown")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("there are no arguments, but there is %q", flag.Arg(0))
	}
	if *beside != "" {
		peers = slices.Insert(peers, 1, peer{name: before, command: beforeCommand(*beside)})
	}
	ctx, cancel := context.WithTimeout(ctx, longest+*soak)
	defer cancel()

	machine, load := describe(b.dir), busy()
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
	if *soak > 0 {
		return b.runSoak(ctx, *soak)
	}
	began := time.Now()
	r := &results{
		machine: machine,
		usher:   versionOf(ctx, b.usher),
		command: "go run ./bench " + strings.Join(shownArgs(), " "),
		load:    load,
		date:    began,
	}
	for _, p := range parts {
		if *only != "" && !strings.EqualFold(*only, p.name) {
			continue
		}
		tables, err := p.run(ctx, b)
		if err != nil {
			return fmt.Errorf("%s: %w", strings.ToLower(p.name), err)
		}
		r.sections = append(r.sections, section{p.name, tables})
	}
	r.took = time.Since(began)
	r.text(os.Stdout)
	if *output == "" {
		return nil
	}
	f, err := os.Create(*output)
	if err != nil {
		return err
	}
	r.markdown(f)
	return f.Close()
}

// shownArgs is the command line, less where its results go and less paths of this
// machine: the latter are described with the disk.
func shownArgs() []string {
	var args []string
	flag.Visit(func(f *flag.Flag) {
		switch {
		case f.Name == "o", f.Name == "dir", f.Name == "usher", f.Name == "beside":
		case f.Value.String() == "true":
			args = append(args, "-"+f.Name)
		default:
			args = append(args, "-"+f.Name+" "+f.Value.String())
		}
	})
	return args
}
