#!/usr/bin/env node
// May this tenant use this feature? node may.mjs TENANT FEATURE
// Prints yes or no. Node 18 or later, no package.
const url = process.env.ENTITLEMENTS_URL ?? 'http://127.0.0.1:8070';
const key = process.env.ENTITLEMENTS_KEY;

// true or false; throws when usher cannot tell.
// Unknown is not "no": decide yourself what a tenant may do that usher does not know.
async function may(tenant, feature) {
  const response = await fetch(`${url}/v1/check?${new URLSearchParams({ tenant, feature })}`, {
    headers: key ? { 'X-Usher-Key': key } : {},
    redirect: 'error',
    signal: AbortSignal.timeout(5_000),
  });
  if (response.status === 204) return true;
  if (response.status === 403) return false;
  throw new Error(`answered ${response.status}: ${await response.text()}`);
}

const [tenant, feature] = process.argv.slice(2);
try {
  if (!feature) throw new Error('usage: node may.mjs TENANT FEATURE');
  const allowed = await may(tenant, feature);
  console.log(allowed ? 'yes' : 'no');
  process.exitCode = allowed ? 0 : 1;
} catch (e) {
  console.error(`usher cannot tell: ${url}: ${e.cause?.message ?? e.message}`);
  process.exitCode = 2;
}
