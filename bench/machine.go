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
	kB, _ := strconv.Atoi(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB"))
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	kernel, _, _ := strings.Cut(strings.TrimSpace(string(release)), "-") // what follows is who built it
	disk, _ := exec.Command("df", "--output=fstype", dir).Output()
	return fmt.Sprintf("%d cores (%s), %.0f GiB, %s %s %s, %s", runtime.NumCPU(), strings.ReplaceAll(field("/proc/cpuinfo", "model name"), "(R)", ""),
		float64(kB)/(1<<20), runtime.GOOS, kernel, runtime.GOARCH, strings.TrimSpace(strings.TrimPrefix(string(disk), "Type")))
}

// busy is the machine's load average of the last minute: what else it had to do. Where
// that is more than it has cores, times and rates say little, and ratios something.
func busy() string {
	b, _ := os.ReadFile("/proc/loadavg")
	minute, _, _ := strings.Cut(string(b), " ")
	return minute
}

// field is the value of the first line of a file that begins with name and a colon.
func field(file, name string) string {
	b, _ := os.ReadFile(file)
	for line := range strings.Lines(string(b)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
