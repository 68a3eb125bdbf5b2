package status

import (
	"time"

	"usher/internal/lane"
)

// Kinds is the table of all troubles. To add one, add a row, and a func that finds it. The overview, 'usher status',
// the metric usher_trouble, the history, notifications and docs/operations.md have it by themselves.
//
// The funcs run in this order: one may look at what those before it have found.
var Kinds = []struct {
	find func(*Status, time.Time) []Trouble // returns the troubles of this kind: what is wrong, and what it is about
	Kind
}{
	{fileGone, Kind{
		Name: "file-gone", Severity: Critical, own: true,
		Means: "Senders get 503. usher still has the file open: what is in it is lost when usher stops.",
		Do: "Do not stop or restart usher. First save the inbox with the command below. Then stop usher, put the saved file in " +
			"the inbox's place, and start usher: it begins paused. Reconcile with the billing service ('usher help reconcile' " +
			"says how), then resume.",
	}},
	{inboxFails, Kind{
		Name: "inbox-fails", Severity: Critical, but: "warning in the first seconds", own: true,
		Means: "Senders get 503 and might not try again: changes do not reach your customers. Nothing that was answered 200 is " +
			"lost. Deliveries may wait, too, and questions about tenants that usher does not hold in memory may be answered 503.",
		Do: "Check the database in USHER_WEBHOOK_INBOX, and the way to it. When it is back, usher continues by itself.",
	}},
	{receiversDown, Kind{
		Name: receiverDown, Severity: Critical,
		Means: "No change reaches your customers: they do not get what they paid for, or keep what they no longer pay for. " +
			"Nothing is lost that is in the inbox.",
		Do: "Fix the receiver, or the way to it: usher then delivers what waits by itself, in order. Without an inbox, resend " +
			"the failed webhooks from the webhook log of the billing service.",
	}},
	{webhooksWait, Kind{
		Name: "webhooks-wait", Severity: Warning, but: "critical if one has waited for ten minutes, or all wait", own: true,
		Means: "These changes have not reached your customers yet. Nothing is lost.",
		Do: "Find out why the receiver does not take them, or not in time: 'usher inbox ls' shows what it answered. " +
			"usher tries again by itself.",
	}},
	{deliveriesLate, Kind{
		Name: "deliveries-late", Severity: Warning, own: true,
		Means: "Changes reach your customers minutes late. Nothing is lost.",
		Do: "Find out why the receiver is slow, or rejects webhooks at first: the webhooks on the admin page show what " +
			"it answered.",
	}},
	{inboxFull, Kind{
		Name: "inbox-full", Severity: Warning,
		Means: "When it is full, senders get 503, and changes do not reach your customers.",
		Do: "Fix the receivers so that they take what waits, discard what they will never take, or raise " +
			"USHER_WEBHOOK_INBOX_MAX_BYTES.",
	}},
	{rowDamaged, Kind{
		Name: "row-damaged", Severity: Critical, own: true,
		Means: "Senders of these tenants' webhooks get 503, and nothing is delivered to them. All others go on.",
		Do:    "Restore a backup of the inbox, or correct the rows in the database, and restart usher.",
	}},
	{isCopy, Kind{
		Name: "copy", Severity: Critical,
		Means: "It begins paused: what waits in it may be old, and what usher took in after the backup is not in it.",
		Do: "Reconcile with the billing service ('usher help reconcile' says how), with --apply. Then resume the " +
			"deliveries.",
	}},
	{noReceiver, Kind{
		Name: "no-receiver", Severity: Critical,
		Means: "The tenants of these platforms do not get what they paid for, or keep what they no longer pay for.",
		Do:    lane.GiveToReceiver + ".",
	}},
	{parked, Kind{
		Name: "parked", Severity: Critical,
		Means: "Their tenants may not get what they paid for: usher does not try a parked webhook again by itself.",
		Do: "Fix the receiver, then redeliver them with 'usher inbox redeliver --state parked'. To set aside one that " +
			"it will never take: 'usher inbox discard ID'.",
	}},
	{invalid, Kind{
		Name: "invalid", Severity: Critical,
		Means: "Each may be a change that nobody sends again: their tenants may not get what they paid for.",
		Do: "See what is wrong with each: 'usher inbox show ID'. Correct it in the billing service and send it again " +
			"(if you customised the payload, set USHER_WEBHOOK_SCHEMA_FILE first), or take it in as it is with " +
			"'usher inbox accept ID', or set it aside with 'usher inbox discard ID'. Without an inbox: correct it, and " +
			"resend it from the webhook log of the billing service.",
	}},
	{missed, Kind{
		Name: "missed", Severity: Critical,
		Means: "A webhook of that time may be a change that nobody sends again: its tenant may not get what they paid for, " +
			"or keep what they no longer pay for.",
		Do: "Reconcile with the billing service ('usher help reconcile' says how), or resend the webhooks of that time " +
			"from its webhook log.",
	}},
	{gateUnreached, Kind{
		Name: "gate-unreached", Severity: Critical, own: true,
		Means: "Changes reach your customers up to ten minutes late, and a checkout that asks first is refused.",
		Do: "Check the address that the billing service has for this gate, and the way from there: 'usher check' compares " +
			"it with the settings.",
	}},
	{logUnread, Kind{
		Name: "log-unread", Severity: Warning, own: true,
		Means: "The billing service drops a webhook after two attempts, and usher does not find those that never came.",
		Do: "Give the API client the scope workflow:read in the billing service. usher tries again each minute. " +
			"To go on without catch-up, remove USHER_WEBHOOK_CATCH_UP_URL.",
	}},
	{questionsFail, Kind{
		Name: "questions-fail", Severity: Critical, own: true,
		Means: "Somebody could not buy: the billing service asks before a checkout (USHER_WEBHOOK_SYNC_TYPES), and no " +
			"answer is a no.",
		Do: "Fix the receiver, or the way to it: the log has each of them. If nothing should ask it, switch off checkout " +
			"validation in the billing service.",
	}},
	{featuresUnknown, Kind{
		Name: "features-unknown", Severity: Critical,
		Means: "Questions about these tenants are answered 404: your program uses its own default, and may lock them out.",
		Do: "Correct the payload of these tenants in the billing service (change.features must be a list, each feature " +
			"with a code, and with a quantity that is a number or null), and send it again.",
	}},
	{renamed, Kind{
		Name: "tenant-renamed", Severity: Warning,
		Means: "Programs that ask by the old code do not see later changes of the tenant.",
		Do:    "When no program asks by the old code any more: 'usher inbox erase PLATFORM/OLD'.",
	}},
	{answersFail, Kind{
		Name: "answers-fail", Severity: Critical, own: true,
		Means: "Programs that ask what a tenant may use wait, or get no answer: they use their own default, and may lock " +
			"customers out.",
		Do: "Find out why the inbox's database is slow or away. Programs that keep a copy (/v1/changes) do not depend on it.",
	}},
	{tokenRefused, Kind{
		Name: "token-refused", Severity: Critical, but: "warning while the current token is valid", own: true,
		Means: "Calls go on as long as the current token is valid; without one every call on this port is answered with an error.",
		Do: "Give usher the client ID, the secret and the scope that the billing service has; a new secret in a file is " +
			"tried at once.",
	}},
	{tokenUnreachable, Kind{
		Name: "token-unreachable", Severity: Critical, but: "warning while the current token is valid", own: true,
		Means: "Calls go on as long as the current token is valid; without one every call on this port is answered with an error.",
		Do:    "Find out why the token endpoint of the billing service does not answer. usher asks at least once a minute.",
	}},
	{tokensRevoked, Kind{
		Name: "tokens-revoked", Severity: Warning, own: true,
		Means: "Some calls are slower, and some may fail.",
		Do: "Another program seems to use the same API client, and its new tokens revoke ours. Give each program an API " +
			"client of its own.",
	}},
	{callsFail, Kind{
		Name: "calls-fail", Severity: Critical, but: "warning if the billing service itself answers with a 5xx", own: true,
		Means: "Your program gets errors for what it asks the billing service for your customers.",
		Do: "Check the billing service and the way to it. If the last call failed with UNAUTHORIZED, the billing service rejects " +
			"even new tokens: 'usher check' says whether each revokes the one before.",
	}},
	{sendersRejected, Kind{
		Name: "senders-rejected", Severity: Warning, own: true,
		Means: "Either strangers try the address, or no change reaches your customers.",
		Do: "The admin page, of each replica its own, shows at /webhooks?state=rejected who sent them, and why each was " +
			"rejected. If it was the billing service: give it and the gate the same secret, then resend them from its " +
			"webhook log.",
	}},
	{clocksDiffer, Kind{
		Name: "clocks-differ", Severity: Warning, own: true,
		Means: "Receivers that check webhook-timestamp reject what this replica delivers, if its clock is the wrong one: most " +
			"allow five minutes. usher's own times may be wrong, too.",
		Do: "Set the clock that is wrong, by NTP: this machine's, or that of the database's machine.",
	}},
	{certificateEnds, Kind{
		Name: "certificate-ends", Severity: Warning, but: "critical in the last day", own: true,
		Means: "When it has expired, senders do not connect, and changes do not reach your customers.",
		Do: "Put a new one into the files that USHER_WEBHOOK_TLS_CERT_FILE and USHER_WEBHOOK_TLS_KEY_FILE name: usher " +
			"uses it without a restart.",
	}},
	{paused, Kind{
		Name: pausedKind, Severity: Warning,
		Means: "Senders still get 200; their webhooks wait. Changes do not reach your customers until the pause ends.",
		Do:    "When it is no longer needed, resume the deliveries. A pause without an end lasts until somebody does.",
	}},
	{notificationsFail, Kind{
		Name: NotifyFails, Severity: Warning, own: true,
		Means: "Nobody hears from usher itself what is wrong. This page, 'usher status' and the alerts say it.",
		Do:    "Check the address in USHER_NOTIFY_URL and the way to it: 'usher check' tries to reach it.",
	}},
	{notReady, Kind{
		Name: "not-ready", Severity: Critical, own: true, // last: it looks at all others
		Means: "What this part is for gets an error: calls, webhooks (503), or questions about what tenants may use (503).",
		Do:    "Wait a few seconds. If it is still not ready, read usher's log.",
	}},
}
