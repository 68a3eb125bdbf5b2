#!/usr/bin/env python3
"""A receiver of webhooks, to start your own from. Python's standard library only.

    WEBHOOK_SECRET=whsec_… STATE_DIR=/var/lib/tenants python3 receiver.py

It takes what usher forwards, verifies that it comes from usher, and stores what each tenant may use:
in SQLite, in one transaction. The secret is the one that usher has as USHER_WEBHOOK_FORWARD_SIGNING_KEY.
"""
import base64
import hashlib
import hmac
import json
import os
import sqlite3
import time
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = base64.b64decode(os.environ["WEBHOOK_SECRET"].removeprefix("whsec_"), validate=True)
DATABASE = os.path.join(os.environ["STATE_DIR"], "tenants.db")
TABLES = """
CREATE TABLE IF NOT EXISTS tenants (platform TEXT, code TEXT, sent INTEGER, PRIMARY KEY (platform, code));
CREATE TABLE IF NOT EXISTS features (platform TEXT, tenant TEXT, code TEXT, quantity INTEGER, PRIMARY KEY (platform, tenant, code));
"""


def verify(headers, body):
    """Checks the headers of standardwebhooks.com: a signature over "id.timestamp.body", of one of several keys
    while they are rotated, and a time that is not long ago. Returns that time, or None."""
    stamp = headers.get("webhook-timestamp", "")
    if not stamp.isdecimal() or abs(time.time() - int(stamp)) > 300:
        return None
    mac = hmac.new(KEY, f"{headers.get('webhook-id', '')}.{stamp}.".encode() + body, hashlib.sha256)
    want = b"v1," + base64.b64encode(mac.digest())
    fits = [hmac.compare_digest(s.encode(), want) for s in headers.get("webhook-signature", "").split()]
    return int(stamp) if any(fits) else None


def apply(payload, sent):
    """Replaces all that was known of the tenant: a feature that is not listed is off. So the same webhook twice
    does no harm. Returns why it did not, if what is known of the tenant was sent later."""
    tenant = payload["tenant"]
    who = ((tenant.get("platform") or {}).get("code") or "", tenant["code"])  # a code alone may exist on two platforms
    features = {f["code"]: f.get("quantity") for f in payload["change"].get("features") or [] if f.get("code")}
    with closing(sqlite3.connect(DATABASE, timeout=5, isolation_level=None)) as db, db:  # commits, or rolls back
        db.execute("BEGIN IMMEDIATE")
        known = db.execute("SELECT sent FROM tenants WHERE platform = ? AND code = ?", who).fetchone()
        if known and sent < known[0]:
            return "what is known of the tenant was sent later"
        db.execute("REPLACE INTO tenants VALUES (?, ?, ?)", (*who, sent))
        db.execute("DELETE FROM features WHERE platform = ? AND tenant = ?", who)
        db.executemany("INSERT INTO features VALUES (?, ?, ?, ?)", [(*who, *f) for f in features.items()])


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        sent = verify(self.headers, body)  # before anything else: do nothing with what usher did not sign
        if self.path != "/provisioning" or sent is None:
            return self.answer(401 if sent is None else 404, "no signature that fits, or no such page")
        try:
            webhook = json.loads(body)
            if webhook.get("type") != "TenantProvisioningChange":
                return self.answer(204)  # a question at checkout changes nothing: 2xx allows the purchase
            if older := apply(webhook["payload"], sent):
                return self.answer(503, older)  # not 2xx: perhaps only a clock was set back
        except Exception as e:  # usher tries again later. (A 400 or 422 would say: never try this one again.)
            self.log_error("%s", e)
            return self.answer(500, "could not be applied")
        self.answer(204)  # any 2xx: I have it

    def answer(self, status, text=""):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())


sqlite3.connect(DATABASE).executescript(TABLES).connection.close()
host, _, port = os.environ.get("LISTEN", "127.0.0.1:3000").rpartition(":")
print(f"listening on http://{host}:{port}/provisioning", flush=True)
ThreadingHTTPServer.request_queue_size = 128
with suppress(KeyboardInterrupt):  # Ctrl-C
    ThreadingHTTPServer((host, int(port)), Receiver).serve_forever()
