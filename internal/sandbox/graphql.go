package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/graph-gophers/graphql-go"
)

// The published interface shows one query. There is no mutation, so that nothing works here that the
// real service may not have.
const schemaText = `
schema { query: Query }

type Query {
	# Accounts whose name contains the filter, in any case; all of them without one.
	accounts(filter: String, limit: Int): [Account!]!
}

type Account {
	id: ID!
	name: String!
}
`

func (b *Billing) call(r *http.Request, body []byte) answer {
	token, found := bearer(r.Header)
	if !found {
		return unauthorized("The access token is missing")
	}
	scopes, fault := b.check(token)
	if fault != "" {
		return unauthorized(fault)
	}
	mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || mediaType != "application/json" {
		return queryError(http.StatusUnsupportedMediaType, "Content-Type must be application/json")
	}
	var q struct {
		Query         string         `json:"query"`
		Variables     map[string]any `json:"variables"`
		OperationName string         `json:"operationName"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return queryError(http.StatusBadRequest, "the body is not a GraphQL request: "+err.Error())
	}
	ctx := context.WithValue(r.Context(), scopesKey{}, scopes)
	return jsonAnswer(http.StatusOK, b.schema.Exec(ctx, q.Query, q.OperationName, q.Variables))
}

// bearer returns the token of the Authorization header. Two headers count as none, because it is not
// clear which one applies.
func bearer(h http.Header) (token string, found bool) {
	values := h.Values("Authorization")
	if len(values) != 1 {
		return "", false
	}
	scheme, token, found := strings.Cut(values[0], " ")
	return token, found && strings.EqualFold(scheme, "Bearer")
}

// unauthorized is the documented answer to an expired token. The sandbox uses it for every token that
// it does not accept.
func unauthorized(description string) answer {
	a := jsonAnswer(http.StatusUnauthorized, []map[string][]string{{"description": {description}}})
	a.header.Set("WWW-Authenticate", `Bearer realm="usher sandbox", error="invalid_token"`)
	return a
}

func queryError(status int, message string) answer {
	return jsonAnswer(status, map[string][]map[string]string{"errors": {{"message": message}}})
}

// scopesKey is the context key of the scopes that a call's token carries.
type scopesKey struct{}

// queries resolves the schema's root.
type queries struct{}

// Accounts needs the scope standard:read. A question about the schema itself needs only a valid
// token: 'usher check' uses that to try a token of any scope.
func (*queries) Accounts(ctx context.Context, args struct {
	Filter *string
	Limit  *int32
}) ([]account, error) {
	scopes, _ := ctx.Value(scopesKey{}).([]string)
	if !slices.Contains(scopes, "standard:read") {
		return nil, errors.New("the access token lacks the scope standard:read")
	}
	limit := len(accounts())
	if args.Limit != nil {
		if *args.Limit < 0 {
			return nil, errors.New("limit must not be negative")
		}
		limit = int(*args.Limit)
	}
	var filter string
	if args.Filter != nil {
		filter = strings.ToLower(*args.Filter)
	}
	found := []account{}
	for _, a := range accounts() {
		if len(found) >= limit {
			break
		}
		if strings.Contains(strings.ToLower(a.Name), filter) {
			found = append(found, a)
		}
	}
	return found, nil
}

// account is an invented customer of the billing service. The GraphQL endpoint
// lists them, and the tenants of the webhooks belong to them.
type account struct {
	number int
	Name   string
}

func (a account) ID() graphql.ID { return graphql.ID(strconv.Itoa(a.number)) }

// accounts returns the same 300 accounts at every call.
var accounts = sync.OnceValue(func() []account {
	stems := []string{
		"Acme", "Bluebird", "Cobalt", "Dandelion", "Ember", "Fjord", "Ginkgo", "Harbour", "Indigo", "Juniper",
		"Kestrel", "Lantern", "Meridian", "Nimbus", "Orchard", "Pebble", "Quartz", "Rowan", "Saffron", "Tundra",
		"Umbra", "Velvet", "Willow", "Yarrow", "Zephyr", "Älvdal", "Brücke", "Café Noir", "Søndag", "Łąka",
	}
	kinds := []string{
		"GmbH", "Ltd", "Logistics", "Software", "Foods", "Robotics", "Energy", "Health", "Media", "& Sons",
	}
	all := make([]account, 0, len(stems)*len(kinds))
	for _, kind := range kinds {
		for _, stem := range stems {
			all = append(all, account{1001 + len(all), stem + " " + kind})
		}
	}
	return all
})
