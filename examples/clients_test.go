package examples

import (
	"os"
	"os/exec"
	"regexp"
	"testing"

	"usher/internal/testkit"
)

// startSandbox runs a billing service, and returns its address.
func startSandbox(t *testing.T) string {
	t.Helper()
	p := start(t, nil, "sandbox", "--listen", "127.0.0.1:0", "--receiver-listen", "off")
	var found []string
	testkit.Eventually(t, "the sandbox", func() bool {
		found = regexp.MustCompile(`USHER_BASE_URL=(\S+)\n`).FindStringSubmatch(p.Stdout.String())
		return found != nil
	})
	return found[1]
}

// graphqlClient is a program that uses a client which many people use, and what a code generator asks.
const graphqlClient = `
import { GraphQLClient, gql } from 'graphql-request';
import { buildClientSchema, getIntrospectionQuery, printSchema } from 'graphql';
const base = process.argv[2];
const form = { grant_type: 'client_credentials', scope: 'standard:read', client_id: 'demo', client_secret: 'demo-secret' };
const { access_token } = await (await fetch(base + '/oauth/token', { method: 'POST', body: new URLSearchParams(form) })).json();
const client = new GraphQLClient(base + '/graphql', { headers: { authorization: 'Bearer ' + access_token } });
const accounts = gql` + "`query A($filter: String, $first: Int) { accounts(filter: $filter, first: $first) { nodes { id name } } }`" + `;
console.log(JSON.stringify(await client.request(accounts, { filter: 'brücke', first: 1 })));
for (const options of [{}, { specifiedByUrl: true, inputValueDeprecation: true }]) {
  console.log(printSchema(buildClientSchema(await client.request(getIntrospectionQuery(options)))));
}
await client.request('{ accounts { secrets } }').catch((e) => console.log(e.response.status, e.response.errors[0].message));
await client.request('mutation { pay }').catch((e) => console.log(e.response.status, e.response.errors.length > 0));
await fetch(base + '/sandbox/revoke', { method: 'POST' });
await client.request(accounts).catch((e) => console.log(e.response.status));
`

const graphqlClientPrints = `^\{"accounts":\{"nodes":\[\{"id":"1027","name":"Brücke GmbH"\}\]\}\}
((?s:.*?)
type Query \{
  accounts\(after: String, before: String, first: Int, last: Int, filter: String, sort: String\): AccountConnection!
(?s:.*?)
type WebhookEventEdge \{
  node: WebhookEvent
  cursor: String!
\}
){2}200 .*secrets.*
200 true
401
$`

func TestGraphQLClient(t *testing.T) {
	t.Parallel()
	dir := npm(t, "client.mjs", graphqlClient)
	cmd := exec.Command("node", "client.mjs", startSandbox(t))
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil || !regexp.MustCompile(graphqlClientPrints).Match(out) {
		t.Errorf("%v:\n%s", err, out)
	}
}

const oauthClient = `
import sys
from oauthlib.oauth2 import BackendApplicationClient, OAuth2Error
from requests_oauthlib import OAuth2Session
base = sys.argv[1]
def session(scope):
    return OAuth2Session(client=BackendApplicationClient("demo", scope=scope))
def token(s, secret="demo-secret"):
    return s.fetch_token(base + "/oauth/token", client_id="demo", client_secret=secret, include_client_id=True)
s = session(["standard:read"])
got = token(s)
print(got["token_type"], got["expires_in"], sorted(got))
print(s.post(base + "/graphql", json={"query": "{ accounts(first: 1) { nodes { name } } }"}).json())
for scope, secret in ((["standard:read"], "wrong"), (["admin"], "demo-secret")):
    try:
        token(session(scope), secret)
    except OAuth2Error as e:
        print(e.error)
`

func TestOAuthClient(t *testing.T) {
	t.Parallel()
	python := ""
	for _, candidate := range []string{"/usr/bin/python3", "python3"} { // Debian's package is for Debian's Python
		if exec.Command(candidate, "-c", "import requests_oauthlib").Run() == nil {
			python = candidate
			break
		}
	}
	if python == "" {
		testkit.Missing(t, "python3-requests-oauthlib is not installed: the sandbox is not tried with it")
	}
	cmd := exec.Command(python, "-c", oauthClient, startSandbox(t))
	cmd.Env = append(os.Environ(), "OAUTHLIB_INSECURE_TRANSPORT=1", "NO_PROXY=*") // it has no TLS
	const want = "Bearer 7200 ['access_token', 'created_at', 'expires_at', 'expires_in', 'token_type']\n" +
		"{'data': {'accounts': {'nodes': [{'name': 'Acme GmbH'}]}}}\ninvalid_client\ninvalid_scope\n"
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != want {
		t.Errorf("%v:\n%s", err, out)
	}
}
