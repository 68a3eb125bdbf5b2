package settings

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"usher/internal/outbound"
	"usher/internal/secret"
	"usher/internal/text"
)

// A section is a group of settings, as help and docs/reference.md show it.
type section struct {
	title, intro string
	rows         []Variable
}

// A Variable is one setting. Everything about it is in this table, except how it depends on other settings.
type Variable struct {
	Name    string // with n in place of the index of a further port or receiver
	field   any    // a pointer to the field that it fills; see expected for the types
	unset   string // what applies if it is not set: a default value in `backticks`, or a description
	meaning string // a sentence or more, with code in `backticks`
}

// Default returns the default value, or the empty string if there is none.
func (v Variable) Default() string {
	if value, ok := strings.CutPrefix(v.unset, "`"); ok {
		return strings.TrimSuffix(value, "`")
	}
	return ""
}

// Secret reports whether the variable is a secret, which can also be given in a file, as Name_FILE.
func (v Variable) Secret() bool {
	_, secret := v.field.(**secret.Value)
	return secret
}

// sections returns all settings.
func (s *Settings) sections() []section {
	return []section{
		{
			title: "Billing service and local ports (outbound)",
			intro: "This part is on when `USHER_BASE_URL` is set. `HTTPS_PROXY`, `NO_PROXY` and `SSL_CERT_FILE` apply to the " +
				"billing service, never to deliveries. Ports with the same client and scope share a token.",
			rows: slices.Concat(s.Outbound.variables(), portVariables(new(outbound.Port))),
		},
		{
			title: "Webhook gate (inbound)",
			intro: "This part is on with `USHER_WEBHOOK_FORWARD_URL`, a further receiver, or an inbox and " +
				"`USHER_ENTITLEMENTS_LISTEN`. A webhook must pass every check that you configure.",
			rows: slices.Concat(s.Webhook.variables(), new(extraReceiver).variables()),
		},
		{
			title: "Inbox",
			intro: "With an inbox usher takes each webhook in before it answers 200, and " +
				"[retries or parks](operations.md#retries-and-parking) what the receiver does not accept. " +
				"Without one it passes webhooks through.",
			rows: s.Webhook.inboxVariables(),
		},
		{
			title: "Entitlements",
			intro: "This part is on when `USHER_ENTITLEMENTS_LISTEN` is set.",
			rows:  s.Entitlements.variables(),
		},
		{
			title: "Admin port, log, shutdown",
			rows:  s.Admin.variables(),
		},
	}
}

func (o *Outbound) variables() []Variable {
	main := &o.main
	return []Variable{
		{"USHER_BASE_URL", &o.BaseURL, "none: outbound is off",
			"The billing service's base address; may have a path. `https`, or `http` on loopback."},
		{"USHER_CLIENT_ID", &main.ClientID, "required with `USHER_BASE_URL`",
			"The client ID of the API client application."},
		{"USHER_CLIENT_SECRET", &main.ClientSecret, "required with `USHER_BASE_URL`",
			"The client secret of the API client application."},
		{"USHER_SCOPE", &main.Scope, "`standard:read standard:write`", "The scopes to request, separated by spaces."},
		{"USHER_LISTEN", &main.Listen, "`127.0.0.1:8080`",
			"The local port that your programs call; `unix:/path` for a socket (mode 0660). `off`: none, only further " +
				"ports, usher's own calls and `usher exec`."},
		{"USHER_KEY", &main.Key, "none",
			"Callers must send this [key](SECURITY.md#keys). Several, comma-separated, while you rotate."},
		{"USHER_INSECURE", &o.Insecure, "`false`",
			"`true` allows a local or entitlements port without a key that other machines can reach."},
		{"USHER_ALLOWED_HOSTS", &o.AllowedHosts, "none",
			"More values of the `Host` header that every port accepts; `*` for any. " +
				"`localhost`, `127.0.0.0/8`, `[::1]` and the port's own host always work; with a key every IP " +
				"address, on a socket everything."},
		{"USHER_ALLOW_PLAIN_HTTP", &o.AllowPlainHTTP, "`false`",
			"`true` allows `http` in `USHER_BASE_URL` to another machine. " +
				"The client secret then travels unencrypted."},
		{"USHER_REPLAY_LIMIT", &o.ReplayLimit, "`1MiB`",
			"The largest request body to keep, for a resend after a 401. Larger ones stream. All together take " +
				"32 MiB at most: beyond it bodies of more than 16 KiB stream, too."},
		{"USHER_UPSTREAM_TIMEOUT", positive{&o.UpstreamTimeout}, "`60s`",
			"How long the billing service may take, from the last byte of a call to the header of its answer."},
	}
}

func portVariables(p *outbound.Port) []Variable {
	return []Variable{
		{"USHER_PORTS_n_LISTEN", &p.Listen, "none",
			"One more local port, for example a read-only one for scripts; n is 0, 1, …"},
		{"USHER_PORTS_n_NAME", &p.Name, "the index",
			"Its name in logs and metrics. The name of `USHER_LISTEN` is `main`."},
		{"USHER_PORTS_n_SCOPE", &p.Scope, "inherited", "The scopes to request for this port."},
		{"USHER_PORTS_n_CLIENT_ID", &p.ClientID, "inherited", "An API client application of its own."},
		{"USHER_PORTS_n_CLIENT_SECRET", &p.ClientSecret, "inherited", "Its secret."},
		{"USHER_PORTS_n_KEY", &p.Key, "inherited", "A key of its own for its callers."},
	}
}

func (w *Webhook) variables() []Variable {
	return []Variable{
		{"USHER_WEBHOOK_FORWARD_URL", &w.ForwardURL, "none", "Your receiver: usher delivers webhooks to this address."},
		{"USHER_WEBHOOK_LISTEN", &w.Listen, "`127.0.0.1:8090`",
			"Where the billing service sends its webhooks. `off`: take no webhooks in and deliver none."},
		{"USHER_WEBHOOK_PATH", &w.Path, "`/webhooks`", "The path of webhooks on that port."},
		{"USHER_WEBHOOK_TOKEN", &w.token, "none",
			"A secret that the sender must send: as `Authorization: Bearer`, as the password of Basic auth, " +
				"in `X-Webhook-Token`, or as one more path segment (`/webhooks/SECRET`). " +
				"Several, comma-separated, while you rotate."},
		{"USHER_WEBHOOK_SIGNING_KEY", &w.signingKey, "none",
			"The key with which the service signs the body (HMAC). Several, comma-separated: any of them fits. " +
				"The signature reaches your receiver, which may check it again."},
		{"USHER_WEBHOOK_SIGNATURE_HEADER", &w.SignatureHeader, "`X-Bunny-Signature`",
			"The header with the signature: hex or base64, with or without `sha256=`."},
		{"USHER_WEBHOOK_SIGNATURE_ALGORITHM", &w.HMAC, "`sha1`", "`sha1`, as the service signs, `sha256` or `sha512`."},
		{"USHER_WEBHOOK_TLS_CERT_FILE", &w.TLSCertFile, "none",
			"A certificate, to serve TLS. usher uses a new file without a restart."},
		{"USHER_WEBHOOK_TLS_KEY_FILE", &w.TLSKeyFile, "none", "The certificate's key."},
		{"USHER_WEBHOOK_INSECURE", &w.Insecure, "`false`",
			"`true` allows a gate without any check that other machines can reach."},
		{"USHER_WEBHOOK_TYPES", &w.Types, "`TenantProvisioningChange`",
			"Event types to accept; `*` for any. Only `TenantProvisioningChange` is deduplicated: " +
				"others hold no complete state."},
		{"USHER_WEBHOOK_SYNC_TYPES", &w.SyncTypes, "`CheckoutValidation`",
			"Event types that ask your receiver a question (may this checkout continue?). " +
				"usher sends them once, stores nothing, and answers with the receiver's status, `Content-Type` " +
				"and body (up to 1 MiB)."},
		{"USHER_WEBHOOK_SCHEMA_FILE", &w.SchemaFile, "built in",
			"A JSON Schema of your own, if you customised the payload. It applies to every type, " +
				"the built-in one to `TenantProvisioningChange` only."},
		{"USHER_WEBHOOK_MAX_BODY", positive{&w.MaxBody}, "`1MiB`", "The largest webhook to accept."},
		{"USHER_WEBHOOK_ANSWER_WITHIN", positive{&w.AnswerWithin}, "`4500ms`",
			"How long the sender waits for an answer at most; the service waits 5 s. Without an inbox it then gets " +
				"504, and the delivery goes on. With an inbox it gets 503."},
		{"USHER_WEBHOOK_DEDUP_SIZE", positive{&w.DedupSize}, "`10000`",
			"Without an inbox: how many tenants' last webhooks usher remembers, to drop copies."},
		{"USHER_WEBHOOK_DEDUP_WINDOW", &w.DedupWindow, "`10m`",
			"How long usher drops copies of a webhook after the receiver accepted it. " +
				"`0` turns deduplication off."},
		{"USHER_WEBHOOK_TIMEOUT", positive{&w.Timeout}, "`10s`", "How long your receiver may take for each try."},
		{"USHER_WEBHOOK_TRIES", positive{&w.Tries}, "`3`", "Tries for each delivery without an inbox."},
		{"USHER_WEBHOOK_MAX_INFLIGHT", positive{&w.MaxInflight}, "`256`",
			"Webhooks handled at once, an equal share for each receiver; more get 503."},
		{"USHER_WEBHOOK_FORWARD_SIGNING_KEY", &w.forwardSigningKey, "none",
			"`whsec_…`: usher signs what it delivers with the Standard Webhooks headers. " +
				"Several, comma-separated, while you rotate: one signature each."},
	}
}

func (c *extraReceiver) variables() []Variable {
	return []Variable{
		{"USHER_WEBHOOK_RECEIVERS_n_PLATFORMS", &c.Platforms, "none",
			"One more receiver, for the webhooks of these platform codes; n is 0, 1, " +
				"… [All others](operations.md#several-receivers) go to `USHER_WEBHOOK_FORWARD_URL`."},
		{"USHER_WEBHOOK_RECEIVERS_n_FORWARD_URL", &c.address, "required with `PLATFORMS`", "Its address."},
		{"USHER_WEBHOOK_RECEIVERS_n_NAME", &c.Name, "the index",
			"Its name in logs and metrics. The name of `USHER_WEBHOOK_FORWARD_URL` is `main`."},
		{"USHER_WEBHOOK_RECEIVERS_n_FORWARD_SIGNING_KEY", &c.forwardSigningKey, "inherited",
			"A signing secret of its own."},
		{"USHER_WEBHOOK_RECEIVERS_n_TIMEOUT", positive{&c.Timeout}, "inherited", "How long it may take for each try."},
		{"USHER_WEBHOOK_RECEIVERS_n_CONCURRENCY", positive{&c.Concurrency}, "inherited",
			"Deliveries to it at once, instead of `USHER_WEBHOOK_INBOX_CONCURRENCY`."},
	}
}

func (w *Webhook) inboxVariables() []Variable {
	return []Variable{
		{"USHER_WEBHOOK_INBOX", &w.Inbox, "none",
			"`file:/path/inbox.db`: a file, for one usher. `postgres://user@host/database`: a [PostgreSQL " +
				"database](operations.md#an-inbox-for-several-replicas) that replicas share."},
		{"USHER_WEBHOOK_INBOX_PARK_AFTER", positive{&w.InboxConfig.ParkAfter}, "`6h`",
			"How long a webhook fails, while its receiver accepts others, until usher parks it."},
		{"USHER_WEBHOOK_INBOX_CONCURRENCY", positive{&w.InboxConcurrency}, "`32`",
			"Deliveries at once, for each receiver, on each replica."},
		{"USHER_WEBHOOK_INBOX_MAX_BYTES", positive{&w.InboxConfig.MaxBytes}, "`1GiB`",
			"What may wait or be parked for each receiver, over all replicas. Beyond that 503; deliveries continue."},
		{"USHER_WEBHOOK_CATCH_UP_URL", &w.catchUpURLs, "none: no catch-up",
			"The address that the billing service has for this gate. usher then reads the service's webhook log, and " +
				"[takes in](reliability.md#catch-up) what was sent there and never arrived (scope `workflow:read`). " +
				"Several, comma-separated."},
		{"USHER_WEBHOOK_INBOX_PASSWORD", &w.inboxPassword, "none",
			"The database's password, read again for each new connection. One in the address works, too."},
	}
}

func (e *Entitlements) variables() []Variable {
	return []Variable{
		{"USHER_ENTITLEMENTS_LISTEN", &e.Listen, "none: entitlements are off",
			"A port, such as `127.0.0.1:8070`, or `unix:/path`. It needs `USHER_WEBHOOK_INBOX`. " +
				"With `postgres://` another usher may take the webhooks in: then set `USHER_WEBHOOK_LISTEN=off`."},
		{"USHER_ENTITLEMENTS_KEY", &e.Key, "none", "As `USHER_KEY`."},
	}
}

func (a *Admin) variables() []Variable {
	return []Variable{
		{"USHER_ADMIN_LISTEN", &a.Listen, "`127.0.0.1:9095`",
			"The admin page, its API, `/healthz`, `/readyz` and `/metrics`; `off` for none."},
		{"USHER_ADMIN_TOKEN", &a.Token, "none",
			"The admin port's [key](SECURITY.md#keys). Several, comma-separated; each can have a name in " +
				"front (`ana:TOKEN,ben:TOKEN`), which `usher inbox actions` shows. Commands send the first."},
		{"USHER_ADMIN_READ_TOKEN", &a.ReadToken, "none",
			"The same, but read-only: it shows everything, `/metrics` too, and cannot act. " +
				"It needs `USHER_ADMIN_TOKEN`."},
		{"USHER_LOG_LEVEL", &a.Level, "`info`", "`debug`, `info`, `warn` or `error`."},
		{"USHER_LOG_FORMAT", &a.LogFormat, "`auto`",
			"`text`, `json`, or `auto`: text on a terminal (coloured, unless `NO_COLOR` is set), else JSON."},
		{"USHER_NOTIFY_URL", &a.NotifyURL, "none",
			"A chat's incoming webhook: usher posts there [what is wrong](operations.md#notifications), " +
				"and when it is over. `HTTPS_PROXY` applies."},
		{"USHER_SHUTDOWN_DELAY", &a.ShutdownDelay, "`0s`",
			"How long usher still serves [after SIGTERM](operations.md#shutdown), " +
				"until load balancers notice."},
		{"USHER_SHUTDOWN_GRACE", &a.ShutdownGrace, "`15s`", "How long it then lets calls and deliveries finish."},
	}
}

// Variables returns all settings, those of a further port or receiver with n instead of the index.
func Variables() []Variable {
	var all []Variable
	for _, sec := range new(Settings).sections() {
		all = append(all, sec.rows...)
	}
	return all
}

// names returns the names of variables, with the _FILE of each secret.
func names(variables []Variable) []string {
	var names []string
	for _, v := range variables {
		names = append(names, v.Name)
		if v.Secret() {
			names = append(names, v.Name+"_FILE")
		}
	}
	return names
}

// Default returns the default value of a setting, or the empty string if it has none.
func Default(name string) string {
	all := Variables()
	return all[slices.IndexFunc(all, func(v Variable) bool { return v.Name == name })].Default()
}

const settingsIntro = "usher reads its settings from environment variables, or from files with one " +
	"`NAME=VALUE` on a line: `usher --env-file FILE`, also before any command. usher reads them as systemd " +
	"reads an `EnvironmentFile=`: comments, quotes, backslashes. If you name several files the last one wins, " +
	"and the environment wins over all files. An empty variable counts as not set. Durations are written as `90s` or `10m`, " +
	"sizes in bytes or with `KiB`, `MiB` or `GiB`. Lists are separated by commas. " +
	"Instead of a secret `X` you can set `X_FILE`, the name of a file that holds it. " +
	"usher reads the file again when its content changes, and keeps the last good value when the file is " +
	"empty, wrong or cannot be read."

// WriteHelp writes all settings for a terminal.
func WriteHelp(w io.Writer) {
	fmt.Fprintln(w, text.Wrap("", plain(settingsIntro)))
	for _, sec := range new(Settings).sections() {
		fmt.Fprintf(w, "\n%s\n", sec.title)
		for _, v := range sec.rows {
			meaning := v.meaning
			if v.Secret() {
				meaning += " Or name a file with it in `" + v.Name + "_FILE`."
			}
			fmt.Fprintf(w, "\n  %s  (default: %s)\n%s\n", v.Name, plain(v.unset), text.Wrap("      ", plain(meaning)))
		}
	}
}

var link = regexp.MustCompile(`\[([^\]]+)\]\(([^)]+)\)`)

// plain is the text for a terminal: a link is its words, and where to read on.
func plain(markdown string) string {
	return link.ReplaceAllString(strings.ReplaceAll(markdown, "`", ""), "$1 (docs/$2)")
}
