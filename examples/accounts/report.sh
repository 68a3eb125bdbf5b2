#!/usr/bin/env bash
# A job for cron: usher exec -- ./report.sh [FILTER]
# usher exec opens a port for this script alone, says in USHER_URL where it is, and
# keeps the secrets to itself. It ends when this script does, with its exit code.
set -euo pipefail
: "${USHER_URL:?run me with: usher exec -- $0}"

# $1 goes into JSON as it is: fine for words of your own, not for anybody else's.
accounts() {
	curl --fail-with-body --silent --show-error --max-time 60 "$USHER_URL" --header 'Content-Type: application/json' --data @- <<-JSON
		{"query": "query(\$filter: String, \$limit: Int) { accounts(filter: \$filter, limit: \$limit) { id name } }",
		 "variables": {"filter": "$1", "limit": 3}}
	JSON
}

if ! answer=$(accounts "${1:-acme}") || [[ $answer == *'"errors"'* ]]; then
	echo "the billing service can't do that: $answer" >&2
	exit 1
fi
echo "$answer"
