#!/usr/bin/env node
// The accounts whose name contains FILTER: node accounts.mjs [FILTER]
// Node 18 or later, no package. It needs no token: usher adds it.
const url = process.env.USHER_URL ?? 'http://127.0.0.1:8080/graphql';
const query = 'query($filter: String, $first: Int) { accounts(filter: $filter, first: $first) { nodes { id name } } }';

async function graphql(query, variables) {
  const response = await fetch(url, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ query, variables }),
    signal: AbortSignal.timeout(60_000),
  }).catch((e) => {
    throw new Error(`${url}: ${e.cause?.message ?? e.message}; is usher running?`);
  });
  if (!response.ok) throw new Error(`${url} answered ${response.status}: ${await response.text()}`);
  const { data, errors } = await response.json();
  // The service rejects in two places: beside the data, and (a missing scope) inside it.
  const rejected = errors ?? Object.values(data).flatMap((field) => field.errors ?? []);
  if (rejected.length > 0) throw new Error(rejected.map((error) => error.message ?? error).join('; '));
  return data;
}

try {
  const { accounts } = await graphql(query, { filter: process.argv[2] ?? 'acme', first: 3 });
  for (const { id, name } of accounts.nodes) console.log(`${id} ${name}`);
} catch (e) {
  console.error(e.message);
  process.exitCode = 1;
}
