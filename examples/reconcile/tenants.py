#!/usr/bin/env python3
"""Prints what the billing service says about every tenant, one on a line, for: usher reconcile -- python3 tenants.py

Python's standard library only. usher gives the address in USHER_URL and adds the token.

The query is that of 'usher sandbox'. Your service has its own: change the query, and make lines like these of its answers.
A line is the payload of a webhook, with everything that your receiver reads of one.
"""
import json
import os
import sys
import urllib.error
import urllib.request

URL = os.environ.get("USHER_URL") or sys.exit("run me with: usher reconcile -- python3 tenants.py")
FEATURES = "features { code name value quantity }"
QUERY = """query($limit: Int, $offset: Int) {
  tenants(limit: $limit, offset: $offset) {
    code name platform { code name } FEATURES
    subscriptions {
      id state start_date end_date trial_start_date trial_end_date
      plan { code name } price_list { code name } product { code name } FEATURES
    }
  }
}""".replace("FEATURES", FEATURES)


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
    except (OSError, ValueError) as e:
        sys.exit(f"{URL}: {e}")
    if answer.get("errors"):
        # Exit with an error rather than print half of the tenants: usher then applies nothing.
        sys.exit("the billing service rejected the query: " + "; ".join(error["message"] for error in answer["errors"]))
    return answer["data"]


offset = 0
# Until a page is empty: a service may give fewer than you ask for, also before the last page.
while page := graphql(QUERY, {"limit": 100, "offset": offset})["tenants"]:
    for tenant in page:
        change = {name: tenant.pop(name) for name in ("features", "subscriptions")}
        print(json.dumps({"tenant": tenant, "change": change}))
    offset += len(page)
