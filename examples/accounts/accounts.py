#!/usr/bin/env python3
"""The accounts whose name contains FILTER: accounts.py [FILTER]

Python's standard library only. It needs no token: usher adds it.
"""
import json
import os
import sys
import urllib.error
import urllib.request

URL = os.environ.get("USHER_URL", "http://127.0.0.1:8080/graphql")
QUERY = "query($filter: String, $first: Int) { accounts(filter: $filter, first: $first) { nodes { id name } } }"


def graphql(query, variables):
    call = urllib.request.Request(
        URL,
        data=json.dumps({"query": query, "variables": variables}).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(call, timeout=60) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as e:
        sys.exit(f"{URL} answered {e.code}: {e.read().decode(errors='replace')}")
    except OSError as e:
        sys.exit(f"{URL}: {e}; is usher running?")
    # The service rejects in two places: beside the data, and (a missing scope) inside it.
    errors = answer.get("errors") or [e for field in answer["data"].values() for e in field.get("errors", [])]
    if errors:
        sys.exit(f"the billing service rejected the query: {json.dumps(errors)}")
    return answer["data"]


filter = sys.argv[1] if len(sys.argv) > 1 else "acme"
for account in graphql(QUERY, {"filter": filter, "first": 3})["accounts"]["nodes"]:
    print(account["id"], account["name"])
