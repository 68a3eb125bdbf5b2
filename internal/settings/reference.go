package settings

import (
	"fmt"
	"io"
	"strings"
)

// What every setting means, in the order in which help and docs/reference.md show them. Names
// and defaults come from the tags of the sections; a test proves that no setting is missing
// here.

// A section is one table of settings.
type section struct {
	title string
	intro string
	rows  []setting
}

// A setting is one variable. Its texts may contain `code`.
type setting struct {
	name    string
	none    string // what to show if there is no default; "none" if empty
	meaning string
}

const settingsIntro = "usher is configured by environment variables, or by files of them: `usher --env-file FILE`, also before any command, reads one `NAME=VALUE` on a line. " +
	"Lines that begin with `#` are comments, one pair of quotes around a value is removed, `export` in front is allowed, and nothing is expanded. " +
	"With several files the later one wins, and the environment wins over all files. An empty variable counts as not set. " +
	"Durations are written as `90s` or `10m`, sizes in bytes or with `KiB`, `MiB` or `GiB`. Lists are separated by commas. " +
	"Every secret `X` can be given as `X_FILE` instead, which names a file. usher reads the file again when its content changes, " +
	"and keeps the last good value when the file is empty or cannot be read."

var reference = []section{
	{"Billing service and local ports (outbound)",
		"This part is on when `USHER_BASE_URL` is set. `HTTPS_PROXY` and `NO_PROXY` apply to the billing service, never to deliveries. Ports with the same client and scope share a token.",
		[]setting{
			{"USHER_BASE_URL", "none: outbound is off", "The billing service's base address; may have a path. `https`, or `http` on loopback."},
			{"USHER_CLIENT_ID", "required with it", "The client ID of the API client application."},
			{"USHER_CLIENT_SECRET", "required with it", "The client secret of the API client application."},
			{"USHER_SCOPE", "", "The scopes to request, separated by spaces."},
			{"USHER_LISTEN", "", "The local port that your programs call; `unix:/path` for a socket (mode 0660)."},
			{"USHER_KEY", "", "Callers must send this key: as `Authorization: Bearer KEY`, as the password of Basic auth, or in `X-Usher-Key`. Several keys, separated by commas, while you rotate. At least 16 characters if the port can be reached from other machines."},
			{"USHER_INSECURE", "", "`true` allows a local or entitlements port without a key to be reached from other machines."},
			{"USHER_ALLOWED_HOSTS", "", "More `Host` values to answer on every port, or `*` for any. `localhost`, `127.0.0.0/8`, `[::1]` and the port's own host always work. With a key every IP address works too, and on a socket everything."},
			{"USHER_ALLOW_PLAIN_HTTP", "", "`true` allows `USHER_BASE_URL` to be `http` to another machine. The client secret then travels unencrypted."},
			{"USHER_REPLAY_LIMIT", "", "The largest request body that usher keeps, to resend it after a 401. Larger ones stream."},
			{"USHER_REPLAY_MEMORY", "", "Memory for all bodies kept at once. When it is full, further bodies stream and cannot be resent. Bodies up to 16 KiB are always kept."},
			{"USHER_UPSTREAM_TIMEOUT", "", "From the last byte of a call to the header of its answer. A token request has 10 s."},
			{"USHER_CA_FILE", "", "CA certificates to trust for the billing service, in addition to the system's."},
			{"USHER_PORTS_n_LISTEN", "", "One more local port; n is 0, 1, … For example a port for scripts that can only read."},
			{"USHER_PORTS_n_NAME", "the index", "Its name in logs and metrics. The name of `USHER_LISTEN` is `main`."},
			{"USHER_PORTS_n_SCOPE", "inherited", "The scopes to request for this port."},
			{"USHER_PORTS_n_CLIENT_ID", "inherited", "An API client application of its own."},
			{"USHER_PORTS_n_CLIENT_SECRET", "inherited", "Its secret."},
			{"USHER_PORTS_n_KEY", "inherited", "A key of its own for its callers."},
		}},
	{"Webhook gate (inbound)",
		"This part is on when webhooks have somewhere to go: `USHER_WEBHOOK_FORWARD_URL`, a further receiver, or an inbox with `USHER_ENTITLEMENTS_LISTEN`. A webhook must pass every check that you configure.",
		[]setting{
			{"USHER_WEBHOOK_FORWARD_URL", "none", "Your receiver: usher delivers webhooks to this address."},
			{"USHER_WEBHOOK_LISTEN", "", "Where the billing service sends its webhooks. `off`: take no webhooks in and deliver none."},
			{"USHER_WEBHOOK_PATH", "", "The path of webhooks on that port."},
			{"USHER_WEBHOOK_TOKEN", "", "A secret that the sender must know; several, separated by commas, while you rotate. It is accepted as `Authorization: Bearer`, as the password of Basic auth, in `X-Webhook-Token`, or as one more path segment (`/webhooks/SECRET`)."},
			{"USHER_WEBHOOK_HMAC_SECRET", "", "The sender must sign the body with this secret (HMAC)."},
			{"USHER_WEBHOOK_HMAC_HEADER", "", "The header with the signature: hex or base64, with or without `sha256=`."},
			{"USHER_WEBHOOK_HMAC_ALGORITHM", "", "`sha256`, `sha512`, or `sha1` for senders that support nothing better."},
			{"USHER_WEBHOOK_HMAC_SCHEME", "", "`standard`: the sender signs with the Standard Webhooks headers, with five minutes of tolerance. The secret then is `whsec_…`. usher takes each `webhook-id` with the same body only once in 15 minutes, unless it failed."},
			{"USHER_WEBHOOK_ALLOW_CIDRS", "", "Networks that may send webhooks."},
			{"USHER_WEBHOOK_TRUSTED_PROXIES", "", "Networks of your proxies: usher believes their `X-Forwarded-For`."},
			{"USHER_WEBHOOK_TLS_CERT_FILE", "", "A certificate, to serve TLS. usher uses a new file without a restart."},
			{"USHER_WEBHOOK_TLS_KEY_FILE", "", "The certificate's key."},
			{"USHER_WEBHOOK_TLS_CLIENT_CA_FILE", "", "Senders must have a client certificate of this CA."},
			{"USHER_WEBHOOK_INSECURE", "", "`true` allows a gate without any check to be reached from other machines."},
			{"USHER_WEBHOOK_TYPES", "", "Event types to accept; `*` for any. Only `TenantProvisioningChange` is deduplicated: others do not hold a complete state."},
			{"USHER_WEBHOOK_SYNC_TYPES", "", "Event types that ask your receiver a question (may this checkout go on?). usher sends them once, does not store or deduplicate them, and answers with the receiver's status, `Content-Type` and body. Do not list them in `USHER_WEBHOOK_TYPES`."},
			{"USHER_WEBHOOK_SCHEMA_FILE", "built in", "A JSON Schema of your own, if you customised the payload. It applies to every type; the built-in one applies to `TenantProvisioningChange` only."},
			{"USHER_WEBHOOK_MAX_BODY", "", "The largest webhook to accept."},
			{"USHER_WEBHOOK_DEDUP_SIZE", "", "Without an inbox: for how many tenants usher remembers the last webhook, to drop copies of it. An inbox remembers all."},
			{"USHER_WEBHOOK_DEDUP_WINDOW", "", "For how long after the receiver accepted a webhook usher drops copies of it. `0` turns deduplication off."},
			{"USHER_WEBHOOK_TIMEOUT", "", "How long your receiver may take for each try."},
			{"USHER_WEBHOOK_ATTEMPTS", "", "Tries for each delivery without an inbox."},
			{"USHER_WEBHOOK_MAX_INFLIGHT", "", "Webhooks being handled at once; more get 503. With several receivers each may use an equal share."},
			{"USHER_WEBHOOK_SIGN_SECRET", "", "`whsec_…`: usher signs what it delivers with the Standard Webhooks headers, so that your receiver can verify it."},
			{"USHER_WEBHOOK_RECEIVERS_n_PLATFORMS", "", "One more receiver, for the webhooks of these platform codes; n is 0, 1, … All others go to `USHER_WEBHOOK_FORWARD_URL`. Without that, usher rejects them with 422 (or keeps them, if entitlements are on)."},
			{"USHER_WEBHOOK_RECEIVERS_n_FORWARD_URL", "required with it", "Its address."},
			{"USHER_WEBHOOK_RECEIVERS_n_NAME", "the index", "Its name in logs and metrics. The name of `USHER_WEBHOOK_FORWARD_URL` is `main`."},
			{"USHER_WEBHOOK_RECEIVERS_n_SIGN_SECRET", "inherited", "A signing secret of its own."},
			{"USHER_WEBHOOK_RECEIVERS_n_TIMEOUT", "inherited", "How long it may take for each try."},
			{"USHER_WEBHOOK_RECEIVERS_n_CONCURRENCY", "inherited", "Deliveries to it at once; inherited from `USHER_WEBHOOK_INBOX_CONCURRENCY`."},
		}},
	{"Inbox", "With an inbox usher stores each webhook before it answers 200, and retries until the receiver has it. Without one it passes webhooks through.",
		[]setting{
			{"USHER_WEBHOOK_INBOX", "none", "`file:/path/inbox.db`: a file, for one usher. `postgres://user@host[,host]/database`: a PostgreSQL database (version 13 or newer) that several replicas share. It takes the usual parameters (`sslmode`, `sslrootcert`, `sslcert`, `sslkey`, `target_session_attrs=read-write` with several hosts) and `schema` (default `usher`), where the tables are."},
			{"USHER_WEBHOOK_INBOX_ATTEMPTS", "", "usher parks a webhook after so many failed tries. Tries while the receiver is down do not count."},
			{"USHER_WEBHOOK_INBOX_MAX_AGE", "", "usher parks a webhook that is older than this."},
			{"USHER_WEBHOOK_INBOX_CONCURRENCY", "", "Deliveries at once, for each receiver, on each replica."},
			{"USHER_WEBHOOK_INBOX_MAX_BYTES", "", "Room for webhooks that wait or are parked, over all replicas together. When it is full, senders get 503 with `Retry-After`; deliveries continue."},
			{"USHER_WEBHOOK_INBOX_KEEP", "", "`latest`: a newer webhook of the same tenant replaces one that waits. `all`: every webhook is delivered."},
			{"USHER_WEBHOOK_INBOX_PASSWORD", "", "The database's password. usher reads it again for each new connection, so you can rotate it in a file. A password in the address works, too."},
		}},
	{"Entitlements", "This part is on when `USHER_ENTITLEMENTS_LISTEN` is set. It answers what a tenant may use.",
		[]setting{
			{"USHER_ENTITLEMENTS_LISTEN", "none: entitlements are off", "A port, such as `127.0.0.1:8070`, or `unix:/path`. It needs `USHER_WEBHOOK_INBOX`. With `postgres://` another usher may take the webhooks in: then set `USHER_WEBHOOK_LISTEN=off`."},
			{"USHER_ENTITLEMENTS_KEY", "", "Callers must send this key, as for `USHER_KEY`. Required if the port can be reached from other machines, with at least 16 characters."},
		}},
	{"Admin port, log, shutdown", "",
		[]setting{
			{"USHER_ADMIN_LISTEN", "", "The admin page, its API, `/healthz`, `/readyz` and `/metrics`; `off` for none."},
			{"USHER_ADMIN_TOKEN", "", "Required if the admin port can be reached from other machines. Callers send it as `Authorization: Bearer`, or as the password of Basic auth. `/healthz` and `/readyz` need no token. Several, separated by commas; each can have a name in front (`ana:TOKEN,ben:TOKEN`), which says who did something. Commands send the first."},
			{"USHER_ADMIN_READ_TOKEN", "", "The same, for those who may look at everything, `/metrics` too, but not act or export. Only together with `USHER_ADMIN_TOKEN`."},
			{"USHER_LOG_LEVEL", "", "`debug`, `info`, `warn` or `error`."},
			{"USHER_LOG_FORMAT", "", "`text`, `json`, or `auto`: text on a terminal (coloured, unless `NO_COLOR` is set), else JSON."},
			{"USHER_SHUTDOWN_DELAY", "", "On SIGTERM usher first reports that it is not ready, and serves for this long, so that load balancers notice. In Kubernetes: `5s`."},
			{"USHER_SHUTDOWN_GRACE", "", "Then it accepts no new connections, and lets calls and deliveries finish for this long. A second signal ends it at once."},
		}},
}

// defaultOf returns the default to show: as code if it is a value.
func (s *setting) defaultOf(v Variable) string {
	switch {
	case v.Default != "":
		return "`" + v.Default + "`"
	case s.none != "":
		return s.none
	}
	return "none"
}

// says returns what the setting means, and whether a file can hold it.
func (s *setting) says(v Variable) string {
	if v.Secret {
		return s.meaning + " Secret: or `_FILE`."
	}
	return s.meaning
}

// WriteHelp writes the settings for a terminal: all, or those in whose name or meaning the
// word occurs. It reports whether there are any.
func WriteHelp(w io.Writer, word string) (found bool) {
	known := byName()
	if word == "" {
		fmt.Fprintln(w, wrap("", plain(settingsIntro)))
	}
	for _, sec := range reference {
		heading := sec.title
		for _, row := range sec.rows {
			v := known[row.name]
			text := row.name + " " + row.says(v)
			if !strings.Contains(strings.ToLower(text), strings.ToLower(word)) {
				continue
			}
			if heading != "" {
				fmt.Fprintf(w, "\n%s\n", heading)
				heading = ""
			}
			found = true
			fmt.Fprintf(w, "\n  %s  (default: %s)\n%s\n", row.name, plain(row.defaultOf(v)), wrap("      ", plain(row.says(v))))
		}
	}
	return found
}

func plain(markdown string) string { return strings.ReplaceAll(markdown, "`", "") }

// wrap breaks a text into lines of up to 80 columns that begin with indent.
func wrap(indent, text string) string {
	var lines []string
	line := indent
	for word := range strings.FieldsSeq(text) {
		if len([]rune(line))+1+len([]rune(word)) > 80 && line != indent {
			lines = append(lines, line)
			line = indent
		}
		if line != indent {
			line += " "
		}
		line += word
	}
	return strings.Join(append(lines, line), "\n")
}
