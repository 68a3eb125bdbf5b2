// Package version has the version of this usher.
package version

import "runtime/debug"

// Set by the release build, with -ldflags.
var (
	number string
	commit string
)

// Number returns the version, such as v1.2.3.
func Number() string {
	if number != "" {
		return number
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// Commit returns the commit that usher was built from.
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

// UserAgent returns the User-Agent of usher's requests to the billing service.
func UserAgent() string { return "usher/" + Number() }
