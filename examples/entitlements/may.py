#!/usr/bin/env python3
"""May this tenant use this feature? may.py TENANT FEATURE

Prints yes or no. Python's standard library only.
"""
import os
import sys
import urllib.error
import urllib.parse
import urllib.request

URL = os.environ.get("ENTITLEMENTS_URL", "http://127.0.0.1:8070")
KEY = os.environ.get("ENTITLEMENTS_KEY")


def may(tenant, feature):
    """True or False; raises OSError when usher cannot tell.

    Unknown is not "no": decide yourself what a tenant may do that usher does not know.
    """
    query = urllib.parse.urlencode({"tenant": tenant, "feature": feature})
    call = urllib.request.Request(f"{URL}/v1/check?{query}", headers={"X-Usher-Key": KEY} if KEY else {})
    try:
        with urllib.request.urlopen(call, timeout=5) as response:
            if response.status == 204:
                return True
            raise OSError(f"{URL} answered {response.status}")
    except urllib.error.HTTPError as e:
        if e.code == 403:
            return False
        raise OSError(f"{URL} answered {e.code}: {e.read().decode(errors='replace')}") from e


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: may.py TENANT FEATURE")
    try:
        allowed = may(sys.argv[1], sys.argv[2])
    except OSError as e:
        print(f"usher cannot tell: {URL}: {e}", file=sys.stderr)
        sys.exit(2)
    print("yes" if allowed else "no")
    sys.exit(0 if allowed else 1)
