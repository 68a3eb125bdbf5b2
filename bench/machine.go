package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
)

// describe says what the figures were measured on. dir is on the disk in question.
func describe(dir string) string {
	parts := []string{strconv.Itoa(runtime.NumCPU()) + " cores"}
	if model := field("/proc/cpuinfo", "model name"); model != "" {
		parts[0] += " (" + strings.NewReplacer("(R)", "", " Processor", "", " CPU", "").Replace(model) + ")"
	}
	if kB, err := strconv.Atoi(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB")); err == nil {
		parts = append(parts, fmt.Sprintf("%.0f GiB", float64(kB)/(1<<20)))
	}
	system := runtime.GOOS + "/" + runtime.GOARCH
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		version, _, _ := strings.Cut(strings.TrimSpace(string(release)), "-") // what follows is who built it
		system = "Linux " + version + " " + runtime.GOARCH
	}
	return strings.Join(append(parts, system, fileSystem(dir)), ", ")
}

// busy is the machine's load average of the last minute: what else it had to do. Where
// that is more than it has cores, times and rates say little, and ratios something.
func busy() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	minute, _, _ := strings.Cut(string(b), " ")
	return minute
}

// field is the value of the first line of a file that begins with name and a colon.
func field(file, name string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// fileSystem is the type of the one that dir is on.
func fileSystem(dir string) string {
	out, err := exec.Command("df", "--output=fstype", dir).Output()
	lines := strings.Fields(string(out))
	if err != nil || len(lines) == 0 {
		return "a file system that can't be told"
	}
	return lines[len(lines)-1]
}
