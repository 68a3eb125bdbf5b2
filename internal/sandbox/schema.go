package sandbox

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/graph-gophers/graphql-go"
	gqlerrors "github.com/graph-gophers/graphql-go/errors"
)

//go:embed schema.graphql
var schemaText string

// schemas are the two that a call may be written for: the one that the service publishes today, and the one that
// its documents and the version 2.2.0 of its Node SDK still show, where accounts is a plain list and a tenant has its
// latest provisioning change.
type schemas struct{ today, documented *graphql.Schema }

func newSchemas(r *records) schemas {
	text := strings.ReplaceAll(schemaText, "PAGE", "after: String, before: String, first: Int, last: Int, filter: String, sort: String")
	for _, node := range []string{"Account", "Platform", "Subscription", "Tenant", "WebhookEvent"} {
		text += strings.ReplaceAll(`
type NODEConnection { nodes: [NODE], edges: [NODEEdge], pageInfo: PageInfo!, totalCount: Int! }
type NODEEdge { node: NODE, cursor: String! }
`, "NODE", node)
	}
	today := &queries{r}
	former := regexp.MustCompile(`(?m)^\taccounts\(.*$`).ReplaceAllLiteralString(text, "\taccounts(filter: String, limit: Int): [Account!]!")
	former = strings.Replace(former, "type Tenant {", "type Tenant {\n\tlatestProvisioningChange: TenantProvisioningChange", 1) + `
type TenantProvisioningChange {
	id: ID!
	change: JSON
	features: String
	createdAt: ISO8601DateTime
	updatedAt: ISO8601DateTime
}
`
	return schemas{
		graphql.MustParseSchema(text, today, graphql.UseFieldResolvers()),
		graphql.MustParseSchema(former, &documentedQueries{today}, graphql.UseFieldResolvers()),
	}
}

// run answers a query by the schema that it fits. One that fits neither gets the errors of today's. A query that the
// token may not make has its refusal in the data, in place of what it asked for, as the service does it.
func (s schemas) run(ctx context.Context, query, operation string, variables map[string]any) *graphql.Response {
	schema := s.today
	fits := func(s *graphql.Schema) bool { return len(s.ValidateWithVariables(query, variables)) == 0 }
	if !fits(s.today) && fits(s.documented) {
		schema = s.documented
	}
	response := schema.Exec(ctx, query, operation, variables)
	refusals := make(map[string]refusal)
	response.Errors = slices.DeleteFunc(response.Errors, func(e *gqlerrors.QueryError) bool {
		why, refused := errors.AsType[missingScope](e.ResolverError)
		if refused {
			refusals[fmt.Sprint(e.Path[0])] = refusal{[]string{why.Error()}}
		}
		return refused
	})
	if len(refusals) == 0 {
		return response
	}
	var data map[string]any
	if _ = json.Unmarshal(response.Data, &data); data == nil { // null, if what was refused must not be null
		data = make(map[string]any)
	}
	for field, r := range refusals {
		data[field] = r
	}
	response.Data = encode(data)
	return response
}

type refusal struct {
	Errors []string `json:"errors"`
}
