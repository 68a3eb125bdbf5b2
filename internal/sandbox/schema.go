package sandbox

import (
	"context"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/graph-gophers/graphql-go"
	gqlerrors "github.com/graph-gophers/graphql-go/errors"
)

//go:embed schema.graphql
var schemaText string

// schemas are the two that a call may be written for: the one that the service publishes today, and the one that
// its documents and the version 2.2.0 of its Node SDK still show, where accounts is a plain list and a tenant has its
// latest provisioning change.
type schemas struct{ today, documented *graphql.Schema }

func newSchemas(b *Billing) schemas {
	text := strings.ReplaceAll(schemaText, "PAGE", "after: String, before: String, first: Int, last: Int, filter: String, sort: String")
	for _, node := range []string{"Account", "Platform", "Subscription", "Tenant", "WebhookEvent"} {
		text += strings.ReplaceAll(`
type NODEConnection { nodes: [NODE], edges: [NODEEdge], pageInfo: PageInfo!, totalCount: Int! }
type NODEEdge { node: NODE, cursor: String! }
`, "NODE", node)
	}
	today := &queries{b}
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

// pageArgs are the arguments of a list.
type pageArgs struct {
	First, Last                 *int32
	After, Before, Filter, Sort *string
}

type connection[T any] struct {
	Nodes      *[]*T
	Edges      *[]*edge[T]
	PageInfo   pageInfo
	TotalCount int32
}

type edge[T any] struct {
	Node   *T
	Cursor string
}

type pageInfo struct {
	HasNextPage, HasPreviousPage bool
	StartCursor, EndCursor       *string
}

// maxPage is the largest page. The service advises no more; what it does with more is not known.
const maxPage = 100

// sorts are the orders that the sandbox knows: its lists are in the order in which their nodes were made.
var sorts = regexp.MustCompile(`(?i)^(?:id|created_at)(?: (asc|desc))?$`)

// page returns a part of a list whose oldest node comes first. A cursor is a position, so a node that is added at the
// front moves the pages behind it: a program that reads on meets a node twice, and misses none.
func page[T any](oldestFirst []*T, a pageArgs) (*connection[T], error) {
	list := oldestFirst
	if a.Sort != nil && *a.Sort != "" {
		order := sorts.FindStringSubmatch(*a.Sort)
		if order == nil {
			return nil, fmt.Errorf("the sandbox cannot sort by %q: use created_at or id, with ASC or DESC", *a.Sort)
		}
		if strings.EqualFold(order[1], "desc") {
			list = slices.Clone(list)
			slices.Reverse(list)
		}
	}
	if a.Filter != nil && *a.Filter != "" {
		return nil, errors.New("the sandbox filters only accounts: what a filter may say here is not published")
	}
	if a.First != nil && *a.First < 0 || a.Last != nil && *a.Last < 0 {
		return nil, errors.New("first and last must not be negative")
	}
	begin, end := 0, len(list)
	for cursor, bound := range map[*string]*int{a.After: &begin, a.Before: &end} {
		if cursor == nil {
			continue
		}
		text, err := base64.RawURLEncoding.DecodeString(*cursor)
		n, invalid := strconv.Atoi(string(text))
		if err != nil || invalid != nil || n < 0 {
			return nil, fmt.Errorf("invalid cursor: %q", *cursor)
		}
		*bound = min(n, len(list))
	}
	if a.Before != nil {
		end--
	}
	end = max(begin, end)
	if a.Last != nil && a.First == nil {
		begin = max(begin, end-min(int(*a.Last), maxPage))
	}
	size := maxPage
	if a.First != nil {
		size = min(int(*a.First), maxPage)
	}
	end = min(end, begin+size)

	nodes, edges := slices.Clone(list[begin:end]), []*edge[T]{}
	for i, node := range nodes {
		cursor := base64.RawURLEncoding.EncodeToString([]byte(strconv.Itoa(begin + i + 1)))
		edges = append(edges, &edge[T]{node, cursor})
	}
	c := &connection[T]{&nodes, &edges, pageInfo{end < len(list), begin > 0, nil, nil}, int32(len(list))}
	if len(edges) > 0 {
		c.PageInfo.StartCursor, c.PageInfo.EndCursor = &edges[0].Cursor, &edges[len(edges)-1].Cursor
	}
	return c, nil
}

// These are the scalars of the schema. No query takes one as an argument.
type (
	moment  struct{ time.Time }       // with whole seconds
	day     string                    // as webhooks write it
	anyJSON struct{ json.RawMessage } // as it is
)

var errNoArgument = errors.New("not an argument")

func (moment) ImplementsGraphQLType(name string) bool  { return name == "ISO8601DateTime" }
func (day) ImplementsGraphQLType(name string) bool     { return name == "ISO8601Date" }
func (anyJSON) ImplementsGraphQLType(name string) bool { return name == "JSON" }
func (*moment) UnmarshalGraphQL(any) error             { return errNoArgument }
func (*day) UnmarshalGraphQL(any) error                { return errNoArgument }
func (*anyJSON) UnmarshalGraphQL(any) error            { return errNoArgument }
func (m moment) MarshalJSON() ([]byte, error)          { return json.Marshal(m.UTC().Format(time.RFC3339)) }
