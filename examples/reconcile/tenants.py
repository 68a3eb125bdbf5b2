#!/usr/bin/env python3
"""Prints what the billing service says about every tenant, one on a line, for: usher reconcile -- python3 tenants.py

Python's standard library only. usher gives the address in USHER_URL and adds the token, which needs the scope
billing:read. A line is the payload of a webhook: what a tenant may use is taken from the charges of its running
subscriptions. Compare some lines with the service's webhook log before you use --apply: your products may need more.
"""
import json
import os
import sys
import urllib.error
import urllib.request

URL = os.environ.get("USHER_URL") or sys.exit("run me with: usher reconcile -- python3 tenants.py")
QUERY = """query($after: String) {
  subscriptions(first: 100, after: $after) {
    nodes {
      id state startDate endDate trialStartDate trialEndDate
      plan { code name } priceList { code name } product { code name }
      tenant { id code name platform { code name } }
      charges { quantity feature { code name } }
    }
    pageInfo { endCursor hasNextPage }
  }
}"""


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
    # The service rejects in two places: beside the data, and (a missing scope) inside it.
    errors = answer.get("errors") or [e for field in answer["data"].values() for e in field.get("errors", [])]
    if errors:
        # Exit with an error rather than print half of the tenants: usher then applies nothing.
        sys.exit(f"the billing service rejected the query: {json.dumps(errors)}")
    return answer["data"]


tenants, seen = {}, set()
page = {"endCursor": None, "hasNextPage": True}
while page["hasNextPage"]:
    subscriptions = graphql(QUERY, {"after": page["endCursor"]})["subscriptions"]
    page = subscriptions["pageInfo"]
    for s in subscriptions["nodes"]:
        tenant = s["tenant"]
        if not tenant or s["id"] in seen:  # a page that has moved shows some a second time
            continue
        seen.add(s["id"])
        tenant["id"] = int(tenant["id"])  # a number, as in a webhook
        change = tenants.setdefault(tenant["id"], {"tenant": tenant, "change": {"features": [], "subscriptions": []}})["change"]
        features = [{**c["feature"], "quantity": c["quantity"]} for c in s["charges"] or [] if c["feature"]]
        change["subscriptions"].append(
            {
                "id": int(s["id"]),
                "state": s["state"].lower(),
                "start_date": s["startDate"],
                "end_date": s["endDate"],
                "trial_start_date": s["trialStartDate"],
                "trial_end_date": s["trialEndDate"],
                "plan": s["plan"],
                "price_list": s["priceList"],
                "product": s["product"],
                "features": features,
            }
        )
        if s["state"] in ("ACTIVE", "TRIAL"):
            change["features"] += features
for tenant in tenants.values():
    print(json.dumps(tenant))
