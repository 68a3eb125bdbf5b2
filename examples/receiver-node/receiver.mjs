#!/usr/bin/env node
// A receiver of webhooks, to start your own from. Node 18 or later, no package.
//
//   WEBHOOK_SECRET=whsec_… STATE_DIR=/var/lib/tenants node receiver.mjs
//
// It takes what usher forwards, verifies that it comes from usher, and stores what each tenant may use:
// here in one file for each tenant, in your application probably in a table. The secret is the one that
// usher has as USHER_WEBHOOK_FORWARD_SIGNING_KEY.
import { createHash, createHmac, timingSafeEqual } from 'node:crypto';
import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';

const key = Buffer.from((process.env.WEBHOOK_SECRET ?? '').replace(/^whsec_/, ''), 'base64');
const dir = process.env.STATE_DIR;
if (key.length === 0 || !dir) throw new Error('set WEBHOOK_SECRET to whsec_ and the key in base64, and STATE_DIR to a folder');

// Checks the headers of standardwebhooks.com: a signature over "id.timestamp.body", of one of several
// keys while they are rotated, and a time that is not long ago. Returns that time, or undefined.
function verify(headers, body) {
  const { 'webhook-id': id, 'webhook-timestamp': stamp = '', 'webhook-signature': signatures = '' } = headers;
  if (!/^\d+$/.test(stamp) || Math.abs(Date.now() / 1000 - Number(stamp)) > 300) return undefined;
  const mac = createHmac('sha256', key).update(`${id ?? ''}.${stamp}.`).update(body).digest('base64');
  const want = Buffer.from(`v1,${mac}`);
  const fits = (s) => Buffer.byteLength(s) === want.length && timingSafeEqual(Buffer.from(s), want);
  return signatures.split(' ').some(fits) ? Number(stamp) : undefined;
}

// Replaces all that was known of the tenant: a feature that is not listed is off. So the same webhook
// twice does no harm. False: what is known of the tenant was sent later.
function apply({ tenant, change }, sent) {
  const state = { platform: tenant.platform?.code ?? '', code: tenant.code, features: {}, sent };
  for (const feature of change.features ?? []) {
    if (feature.code) state.features[feature.code] = feature.quantity ?? null; // its limit; null: no limit
  }
  // Never use a code as the name of a file: somebody else chose it. And a code alone does not identify a
  // tenant: another platform may have the same one.
  const name = createHash('sha256').update(`${state.platform}\0${state.code}`).digest('hex');
  const path = join(dir, `${name}.json`);
  if (sent < (known(path)?.sent ?? 0)) return false;
  writeFileSync(`${path}.new`, JSON.stringify(state) + '\n', { flush: true });
  renameSync(`${path}.new`, path); // all of it, or nothing
  return true;
}

function known(path) {
  try {
    return JSON.parse(readFileSync(path, 'utf8'));
  } catch (e) {
    if (e.code === 'ENOENT') return undefined;
    throw e;
  }
}

const server = createServer(async (request, response) => {
  const end = (status) => response.writeHead(status).end();
  try {
    const body = Buffer.concat(await request.toArray());
    const sent = verify(request.headers, body); // before anything else: do nothing with what usher did not sign
    if (sent === undefined) return end(401);
    if (request.method !== 'POST' || request.url !== '/provisioning') return end(404);
    const { type, payload } = JSON.parse(body);
    if (type !== 'TenantProvisioningChange') return end(204); // a question at checkout changes nothing: 2xx allows the purchase
    if (!apply(payload, sent)) return end(503); // not 2xx: perhaps only a clock was set back
    end(204); // any 2xx: I have it
  } catch (e) {
    console.error(e.message); // usher tries again later. (A 400 or 422 would say: never try this one again.)
    end(500);
  }
});
const [host, port] = (process.env.LISTEN ?? '127.0.0.1:3000').split(':');
server.listen(port, host, () => console.log(`listening on http://${host}:${port}/provisioning`));
