#!/usr/bin/env bash
# A job for cron: usher exec -- ./report.sh [FILTER]
# usher exec opens a port for this script alone, puts its address into USHER_URL, and hides
# its secrets from the script. It ends when this script ends, with the same exit code.
set -euo pipefail
: "${USHER_URL:?run me with: usher exec -- $0}"

# $1 goes into the JSON unchanged: fine for your own words, not for somebody else's input.
accounts() {
	curl --fail-with-body --silent --show-error --max-time 60 "$USHER_URL" --header 'Content-Type: application/json' --data @- <<-JSON
		{"query": "query(\$filter: String, \$first: Int) { accounts(filter: \$filter, first: \$first) { nodes { id name } } }",
		 "variables": {"filter": "$1", "first": 3}}
	JSON
}

if ! answer=$(accounts "${1:-acme}") || [[ $answer == *'"errors"'* ]]; then
	echo "the billing service can't do that: $answer" >&2
	exit 1
fi
echo "$answer"
