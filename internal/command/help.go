package command

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"usher/internal/settings"
)

const usage = `usher stands between your software and the billing service. It adds a token to
each call, it checks, deduplicates and delivers webhooks, and it answers what a
tenant may use.

Usage:

  usher              run until you stop it, with settings from environment
                     variables
  usher demo         try it: a built-in billing service, no account, no network,
                     no settings
  usher sandbox      a billing service for your laptop or your CI: try your
                     programs and your receiver on it
  usher exec -- CMD ARG...
                     run a command that calls the billing service
  usher reconcile [-- CMD ARG...]
                     find changes that usher does not know: compare what the
                     billing service says of each tenant with what usher knows
  usher check        try the settings without opening a port
  usher status       ask a running usher how it is, and what to do
  usher healthcheck  ask a running usher whether it is ready
  usher inbox        see and redeliver the webhooks that a running usher keeps
  usher entitlements TENANT [FEATURE]
                     ask a running usher what a tenant may use
  usher help [COMMAND | settings [WORD]]
                     help on a command; all settings, or those about a word
  usher version      print version, commit and Go version

  usher --env-file FILE COMMAND
                     run a command, or none, with settings from a file: one
                     NAME=VALUE on a line. If you name several files, the last
                     one wins. Environment variables win over files

To call the billing service, set these:

  USHER_BASE_URL       the billing service, such as https://billing.example.com
  USHER_CLIENT_ID      the client ID of your API client application
  USHER_CLIENT_SECRET  its client secret (or USHER_CLIENT_SECRET_FILE)

Then call http://127.0.0.1:8080/graphql as if it were the service, without a
token.

To receive its webhooks, set this (it works without the others):

  USHER_WEBHOOK_FORWARD_URL  your receiver, such as
                             http://127.0.0.1:3000/provisioning

Then send webhooks to http://127.0.0.1:8090/webhooks. So that the service can
reach it, set USHER_WEBHOOK_LISTEN=0.0.0.0:8090 and USHER_WEBHOOK_TOKEN.

To ask what a tenant may use, store its webhooks, and open a port for questions:

  USHER_WEBHOOK_INBOX        such as file:/var/lib/usher/inbox.db
  USHER_ENTITLEMENTS_LISTEN  such as 127.0.0.1:8070

The admin page is at http://127.0.0.1:9095. All settings: usher help settings

Exit codes: 0 success, 1 failed while running, 2 wrong settings or usage,
3 'usher reconcile' found differences.
`

// commandHelp is what 'usher help COMMAND' and 'usher COMMAND -h' print.
var commandHelp = map[string]string{
	"demo": `Usage: usher demo

Runs usher between a built-in billing service and a built-in receiver. It needs
no account, no network and no settings. It shows in half a minute what usher
does, then sends a webhook every few seconds until you press Ctrl-C.

If USHER_WEBHOOK_FORWARD_URL is set, the webhooks go to your receiver there, and
the demo says what it answers. Stop your receiver, or let it answer 500: its
webhooks wait, and usher delivers them when it works again.

The demo uses only your listen, admin, log and shutdown settings and, for your
receiver, USHER_WEBHOOK_FORWARD_SIGNING_KEY and USHER_WEBHOOK_TIMEOUT. If a
default port is taken it uses a free one. The log shows warnings only;
USHER_LOG_LEVEL=info shows more.
`,
	"exec": `Usage: usher exec -- CMD ARG...

Runs CMD with USHER_URL set to the address of a port of its own, and without
usher's settings in its environment. CMD calls the billing service at
$USHER_URL, without a token. On Linux the port answers only processes of the
same user.

It needs USHER_BASE_URL, USHER_CLIENT_ID and USHER_CLIENT_SECRET. It waits up to
30 s for a token, passes signals on, and exits with CMD's exit code: 128+n if
signal n ended it, 127 if there is no such command, 126 if it cannot be started,
1 if there is no token.

  usher exec -- ./report.sh
`,
	"check": `Usage: usher check

Tries the settings, and opens no port: it fetches a token for each port and
sends a call with it, finds out whether a new token revokes the one before (then
replicas cannot share the API client), connects to each receiver, and checks
that the inbox can be reached and written. It prints one line for each. Exit
code 0 if all is well, 1 if not, 2 if the settings are wrong.
`,
	"healthcheck": `Usage: usher healthcheck

Asks the admin port of a running usher for /readyz, and prints the answer:
{"problems":[],"ready":true}, or what is wrong. Exit code 0 if it is ready, else
1: for images without a shell. It finds the port by USHER_ADMIN_LISTEN, and uses
no other setting. If a service manager started usher:

  usher --env-file /etc/usher/gate.env healthcheck
`,
	"sandbox":      sandboxUsage,
	"status":       statusUsage,
	"inbox":        inboxUsage,
	"reconcile":    reconcileUsage,
	"entitlements": entitlementsUsage,
	"version": `Usage: usher version

Prints version, commit and Go version.
`,
	"help": `Usage: usher help [COMMAND|settings]

Prints help on a command, or every setting with its default.
`,
}

// helpCommand is 'usher help'.
func helpCommand(_ context.Context, p *Process, args []string) error {
	switch {
	case len(args) == 0:
		fmt.Fprint(p.Stdout, usage)
		return nil
	case args[0] == "settings":
		settings.WriteHelp(p.Stdout)
		return nil
	}
	text, ok := commandHelp[args[0]]
	if !ok {
		return unknown("command", args[0], append(slices.Sorted(maps.Keys(commandHelp)), "settings"))
	}
	fmt.Fprint(p.Stdout, text)
	return nil
}
