// Package version says which usher this is.
package version

import "runtime/debug"

// Set by the release build.
var (
	number string
	commit string
)

// Number is the version, such as v1.2.3.
func Number() string {
	if number != "" {
		return number
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// Commit is what it was built from.
func Commit() string {
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

// UserAgent is what usher calls itself towards the billing service.
func UserAgent() string { return "usher/" + Number() }
