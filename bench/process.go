package main

import (
	"os"
	"os/exec"
	"runtime"
	"time"
)

// process is a program that runs beside this one.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// launch runs a program with this environment and nothing else but the path.
func (b *bench) launch(args, env []string) (*process, error) {
	p := &process{cmd: exec.Command(args[0], args[1:]...), ended: make(chan struct{})}
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	if b.loud {
		p.cmd.Stdout, p.cmd.Stderr = os.Stderr, os.Stderr
	}
	if _, err := p.cmd.StdinPipe(); err != nil { // see main: a role ends with us, however we end
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // how it ended is of no interest: it was told to
	}()
	return p, nil
}

// stop ends the program, and returns when it has ended.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(os.Interrupt)
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// pins say where programs run: what is measured on one core, what loads it and what
// it calls on another, so that neither takes the other's time. Empty where there is
// but one core, or no taskset.
type pins struct{ measured, others []string }

func findPins() pins {
	taskset, err := exec.LookPath("taskset")
	if err != nil || runtime.NumCPU() < 2 {
		return pins{}
	}
	return pins{measured: []string{taskset, "-c", "0"}, others: []string{taskset, "-c", "1"}}
}
