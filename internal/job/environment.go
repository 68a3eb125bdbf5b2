package job

import (
	"cmp"
	"slices"
	"strings"

	"usher/internal/settings"
)

// portEnvironment is environ without the settings of ports that a job does not open.
func portEnvironment(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains([]string{"USHER_LISTEN", "USHER_KEY", "USHER_KEY_FILE"}, name) ||
			strings.HasPrefix(name, "USHER_PORTS_") || strings.HasPrefix(name, "USHER_WEBHOOK_") ||
			strings.HasPrefix(name, "USHER_ENTITLEMENTS_") || strings.HasPrefix(name, "USHER_ADMIN_")
	})
}

// commandEnvironment is environ without usher's secrets, and with USHER_URL.
func commandEnvironment(environ []string, url string) []string {
	var env []string
	proxied := false
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case name == "USHER_URL" || isSecret(name):
			continue
		case slices.Contains([]string{"HTTP_PROXY", "ALL_PROXY"}, strings.ToUpper(name)):
			proxied = true
		}
		env = append(env, kv)
	}
	if proxied {
		// Many clients send even 127.0.0.1 through the proxy unless told not to.
		env = exemptLoopback(env)
	}
	return append(env, "USHER_URL="+url)
}

// exemptLoopback has clients reach 127.0.0.1 without the proxy. It sets both spellings: some
// clients read only one of them.
func exemptLoopback(env []string) []string {
	values := settings.Environment(env)
	exempt := cmp.Or(values["no_proxy"], values["NO_PROXY"])
	switch exempt {
	case "*":
		return env
	case "":
		exempt = "127.0.0.1"
	default:
		exempt = strings.TrimSuffix(exempt, ",") + ",127.0.0.1"
	}
	env = slices.DeleteFunc(env, func(kv string) bool {
		return strings.HasPrefix(kv, "NO_PROXY=") || strings.HasPrefix(kv, "no_proxy=")
	})
	return append(env, "NO_PROXY="+exempt, "no_proxy="+exempt)
}

// isSecret says whether a variable may hold a secret of usher, or name its file. That
// includes names that look like a slip of a secret's name, and addresses.
func isSecret(name string) bool {
	rest, ours := strings.CutPrefix(name, "USHER_")
	if !ours {
		return false
	}
	for _, part := range []string{"SECRET", "TOKEN", "KEY", "PORTS_", "WEBHOOK_", "ENTITLEMENTS_", "ADMIN_"} {
		if strings.Contains(rest, part) {
			return true
		}
	}
	return false
}
