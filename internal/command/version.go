package command

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
)

// Set by the release build.
var (
	version string
	commit  string
)

func printVersion(_ context.Context, p Process) int {
	fmt.Fprintf(p.Stdout, "usher %s, commit %s, %s\n", buildVersion(), buildCommit(), runtime.Version())
	return exitOK
}

func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

func buildCommit() string {
	if commit != "" {
		return commit
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "unknown"
}

func userAgent() string { return "usher/" + buildVersion() }
