#!/usr/bin/env bash
# Prints what the billing service says about every tenant, one on a line, for: usher reconcile -- ./tenants.sh
# With curl and jq. usher gives the address in USHER_URL and adds the token.
#
# The query is that of 'usher sandbox'. Your service has its own: change the query, and make lines like these of its answers.
# A line is the payload of a webhook, with everything that your receiver reads of one.
set -euo pipefail
: "${USHER_URL:?run me with: usher reconcile -- $0}"

query='query($limit: Int, $offset: Int) {
  tenants(limit: $limit, offset: $offset) {
    code name platform { code name }
    features { code name value quantity }
    subscriptions {
      id state start_date end_date trial_start_date trial_end_date
      plan { code name } price_list { code name } product { code name }
      features { code name value quantity }
    }
  }
}'
limit=100
offset=0

# Until a page is empty: a service may give fewer than you ask for, also before the last page.
while true; do
	answer=$(jq -n --arg query "$query" --argjson limit $limit --argjson offset $offset '{$query, variables: {$limit, $offset}}' |
		curl --fail-with-body --silent --show-error --max-time 60 "$USHER_URL" --header 'Content-Type: application/json' --data @-) ||
		{ echo "the billing service can't be asked: $answer" >&2; exit 1; }
	# Exit with an error rather than print half of the tenants: usher then applies nothing.
	jq -e '.data.tenants and (.errors | not)' >/dev/null <<<"$answer" || { echo "the billing service rejected the query: $answer" >&2; exit 1; }
	count=$(jq '.data.tenants | length' <<<"$answer")
	((count > 0)) || break
	jq -c '.data.tenants[] | {tenant: {code, name, platform}, change: {features, subscriptions}}' <<<"$answer"
	offset=$((offset + count))
done
