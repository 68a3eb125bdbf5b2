#!/bin/sh
# The accounts whose name contains FILTER, as JSON: accounts.sh [FILTER]
# With curl alone. It needs no token: usher adds it.
set -eu
url=${USHER_URL:-http://127.0.0.1:8080/graphql}

# The shell puts the words into the JSON unchanged: fine for words, not for quotes.
# (jq would do it properly: jq -n --arg filter "$1" '{…}'.)
case ${1:-acme} in *[\"\\]*) echo "no quotes or backslashes, please" >&2; exit 2 ;; esac

curl --fail-with-body --silent --show-error --max-time 60 "$url" \
	--header 'Content-Type: application/json' \
	--data '{"query": "query($filter: String, $first: Int) { accounts(filter: $filter, first: $first) { nodes { id name } } }",
	         "variables": {"filter": "'"${1:-acme}"'", "first": 3}}'
