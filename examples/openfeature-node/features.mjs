// What a tenant may use, through OpenFeature: node features.mjs TENANT [PLATFORM]
// First: npm install
import { OpenFeature } from '@openfeature/server-sdk';
import { OFREPProvider } from '@openfeature/ofrep-provider';

await OpenFeature.setProviderAndWait(
  new OFREPProvider({
    baseUrl: process.env.ENTITLEMENTS_URL ?? 'http://127.0.0.1:8070',
    headers: process.env.ENTITLEMENTS_KEY ? [['X-API-Key', process.env.ENTITLEMENTS_KEY]] : [],
  }),
);
const client = OpenFeature.getClient();

// The targeting key is the tenant. Take it from the session that you verified.
const [tenant, platform] = process.argv.slice(2);
const context = { targetingKey: tenant, ...(platform === undefined ? {} : { platform }) };

// The second argument is what applies when usher does not know the tenant, or cannot be
// reached. Choose it with care: true lets everybody in.
const reports = await client.getBooleanDetails('reports', false, context);
const users = await client.getNumberDetails('users.limit', 1, context);
const tier = await client.getStringDetails('tier.value', 'unknown', context);

for (const flag of [reports, users, tier]) {
  console.log(flag.flagKey, flag.value, flag.errorCode ?? flag.variant);
}
await OpenFeature.close();
