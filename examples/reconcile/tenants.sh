#!/usr/bin/env bash
# Prints what the billing service says about every tenant, one on a line, for: usher reconcile -- ./tenants.sh
# With curl and jq. usher gives the address in USHER_URL and adds the token, which needs the scope billing:read.
#
# A line is the payload of a webhook: what a tenant may use is taken from the charges of its running subscriptions.
# Compare some lines with the service's webhook log before you use --apply: your products may need more.
set -euo pipefail
: "${USHER_URL:?run me with: usher reconcile -- $0}"

query='query($after: String) {
  subscriptions(first: 100, after: $after) {
    nodes {
      id state startDate endDate trialStartDate trialEndDate
      plan { code name } priceList { code name } product { code name }
      tenant { id code name platform { code name } }
      charges { quantity feature { code name } }
    }
    pageInfo { endCursor hasNextPage }
  }
}'
after=null
pages=$(mktemp)
trap 'rm -f "$pages"' EXIT

while [ "$after" != end ]; do
	answer=$(jq -n --arg query "$query" --argjson after "$after" '{$query, variables: {$after}}' |
		curl --fail-with-body --silent --show-error --max-time 60 "$USHER_URL" --header 'Content-Type: application/json' --data @-) ||
		{ echo "the billing service can't be asked: $answer" >&2; exit 1; }
	# Exit with an error rather than print half of the tenants: usher then applies nothing.
	jq -e '.data.subscriptions.nodes and (.errors | not)' >/dev/null <<<"$answer" || { echo "the billing service rejected the query: $answer" >&2; exit 1; }
	jq -c '.data.subscriptions.nodes[]' <<<"$answer" >>"$pages"
	after=$(jq -r '.data.subscriptions.pageInfo | if .hasNextPage then (.endCursor | tojson) else "end" end' <<<"$answer")
done

# A page that has moved shows some subscriptions a second time: unique_by drops them.
jq -cs 'unique_by(.id) | map(select(.tenant)) | group_by(.tenant.id)[] | map(. + {
	features: [.charges[]? | select(.feature) | .feature + {quantity}]
}) | {
	tenant: (.[0].tenant | .id |= tonumber), # as in a webhook
	change: {
		features: map(select(.state == "ACTIVE" or .state == "TRIAL") | .features[]),
		subscriptions: map({id: (.id | tonumber), state: (.state | ascii_downcase), start_date: .startDate, end_date: .endDate,
			trial_start_date: .trialStartDate, trial_end_date: .trialEndDate, plan, price_list: .priceList, product, features})
	}
}' "$pages"
