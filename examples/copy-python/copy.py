#!/usr/bin/env python3
"""A copy of what each tenant may use, in SQLite. Python's standard library only.

    usher changes --cursor cursor --follow -- python3 copy.py copy.db

takes the lines of 'usher changes' into the tables of copy.db. Without usher's command,

    python3 copy.py copy.db http://127.0.0.1:8070

asks usher itself (with ENTITLEMENTS_KEY, if it is set), and stores its cursor in the same file.
"""
import json
import os
import sqlite3
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

TABLES = """
CREATE TABLE IF NOT EXISTS tenants (platform TEXT, tenant TEXT, webhook TEXT, passed INTEGER, PRIMARY KEY (platform, tenant));
CREATE TABLE IF NOT EXISTS features (platform TEXT, tenant TEXT, feature TEXT, "limit" INTEGER, value TEXT, PRIMARY KEY (platform, tenant, feature));
CREATE TABLE IF NOT EXISTS place (cursor TEXT, everybody INTEGER);
INSERT INTO place SELECT NULL, 1 WHERE NOT EXISTS (SELECT * FROM place);
"""


def begin(db):
    """All tenants follow. passed says who did."""
    db.execute("UPDATE tenants SET passed = 0")


def end(db):
    """Who was not among them is gone."""
    db.execute("DELETE FROM features WHERE (platform, tenant) IN (SELECT platform, tenant FROM tenants WHERE passed = 0)")
    db.execute("DELETE FROM tenants WHERE passed = 0")


def replace(db, change):
    """Replaces all that is known of a tenant: so the same change twice does no harm."""
    who = (change["platform"], change["tenant"])
    db.execute("DELETE FROM features WHERE platform = ? AND tenant = ?", who)
    db.execute("DELETE FROM tenants WHERE platform = ? AND tenant = ?", who)
    if change.get("erased"):
        return
    db.execute("INSERT INTO tenants VALUES (?, ?, ?, 1)", (*who, change["webhook"]))
    if change["features"] is None:
        return  # unknown: no row says yes
    db.executemany("INSERT INTO features VALUES (?, ?, ?, ?, ?)", [(*who, f["feature"], f["limit"], f["value"]) for f in change["features"]])


def take(db, lines):
    """Takes the lines of 'usher changes', all or none."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        for line in lines:
            change = json.loads(line)
            if "all" in change:
                begin(db) if change["all"] == "begin" else end(db)
            else:
                replace(db, change)


def ask(url, cursor, wait):
    query = urllib.parse.urlencode({"wait": wait, **({"after": cursor} if cursor else {})})
    key = os.environ.get("ENTITLEMENTS_KEY")
    call = urllib.request.Request(f"{url}/v1/changes?{query}", headers={"X-Usher-Key": key} if key else {})
    with urllib.request.urlopen(call, timeout=wait + 10) as response:
        return json.load(response)


def follow(db, url):
    more = True
    while True:
        cursor, everybody = db.execute("SELECT cursor, everybody FROM place").fetchone()
        try:
            page = ask(url, cursor, 0 if more or everybody else 50)
        except urllib.error.HTTPError as e:
            if e.code == 410:  # the inbox has gone back in time, or is another one
                with db:
                    db.execute("UPDATE place SET cursor = NULL, everybody = 1")
                continue
            if e.code < 500:
                raise
            page = None
        except (OSError, ValueError):
            page = None
        if page is None:
            time.sleep(1)
            continue
        with db:  # the changes and the cursor behind them: both or none
            db.execute("BEGIN IMMEDIATE")
            if cursor is None:
                begin(db)
            for change in page["changes"]:
                replace(db, change)
            more = page["more"]
            if everybody and not more:
                end(db)
            db.execute("UPDATE place SET cursor = ?, everybody = ?", (page["cursor"], everybody and more))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: copy.py FILE [URL]")
    copy = sqlite3.connect(sys.argv[1], timeout=10, isolation_level=None)
    copy.executescript("PRAGMA journal_mode = WAL;" + TABLES)
    if len(sys.argv) == 3:
        follow(copy, sys.argv[2])
    take(copy, sys.stdin)
