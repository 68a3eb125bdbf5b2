package sandbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/graph-gophers/graphql-go"
)

// scopesKey is the context key of the scopes that a call's token carries.
type scopesKey struct{}

func scopesOf(ctx context.Context) []string {
	scopes, _ := ctx.Value(scopesKey{}).([]string)
	return scopes
}

// allow refuses a query whose token lacks a scope. Introspection and currentUser need only a valid token, so that a
// program can ask what its token may do.
func allow(ctx context.Context, scope, query string) error {
	if slices.Contains(scopesOf(ctx), scope) {
		return nil
	}
	return missingScope{scope, query}
}

type missingScope struct{ scope, query string }

func (m missingScope) Error() string {
	return fmt.Sprintf("Missing required permission: %s, can't access query %s", m.scope, m.query)
}

// list answers a query for a list: the page that it asks for, if its token may.
func list[T any](ctx context.Context, scope, query string, all []*T, args pageArgs) (*connection[T], error) {
	if err := allow(ctx, scope, query); err != nil {
		return nil, err
	}
	return page(all, args)
}

// queries resolves the fields of the schema's type Query.
type queries struct{ *records }

// records are what the service has stored.
type records struct {
	book *book
	log  *webhookLog

	// Platforms returns what is configured for the platforms; may be nil. Set it before serving.
	Platforms func() []*Platform
}

type currentUser struct{ Scopes []string }

// CurrentUser says which scopes the token has.
func (q *queries) CurrentUser(ctx context.Context) currentUser { return currentUser{scopesOf(ctx)} }

// Accounts lists the accounts whose name contains the filter, in any case; all of them without one.
func (q *queries) Accounts(ctx context.Context, args pageArgs) (*connection[account], error) {
	found := namedLike(args.Filter)
	args.Filter = nil
	return list(ctx, "standard:read", "accounts", found, args)
}

func namedLike(filter *string) []*account {
	found := []*account{}
	for _, a := range accounts() {
		if filter == nil || strings.Contains(strings.ToLower(a.name), strings.ToLower(*filter)) {
			found = append(found, &account{ID: graphql.ID(fmt.Sprint(a.number)), Name: &a.name})
		}
	}
	return found
}

// Platforms lists the platforms, with what is configured for each.
func (q *queries) Platforms(ctx context.Context, args pageArgs) (*connection[Platform], error) {
	return list(ctx, "product:read", "platforms", q.platforms(), args)
}

// Tenants lists the tenants, the one that was made first in front.
func (q *queries) Tenants(ctx context.Context, args pageArgs) (*connection[tenantNode], error) {
	return list(ctx, "product:read", "tenants", q.tenants(), args)
}

// Tenant returns the first tenant with this code or id, or null.
func (q *queries) Tenant(ctx context.Context, args struct {
	Code *string
	ID   *graphql.ID
}) (*tenantNode, error) {
	if err := allow(ctx, "product:read", "tenant"); err != nil {
		return nil, err
	}
	for _, t := range q.tenants() {
		if args.Code != nil && *args.Code == *t.Code || args.ID != nil && *args.ID == t.ID {
			return t, nil
		}
	}
	return nil, nil
}

// Subscriptions lists what the tenants' last webhooks say about their subscriptions.
func (q *queries) Subscriptions(ctx context.Context, args pageArgs) (*connection[subscriptionNode], error) {
	var all []*subscriptionNode
	for _, t := range q.tenants() {
		all = append(all, t.subscriptions()...)
	}
	return list(ctx, "billing:read", "subscriptions", all, args)
}

// WebhookEvents lists the webhook log, the newest entry in front if nothing else is asked for.
func (q *queries) WebhookEvents(ctx context.Context, args pageArgs) (*connection[webhookEvent], error) {
	if args.Sort == nil {
		args.Sort = new("created_at DESC")
	}
	return list(ctx, "workflow:read", "webhookEvents", q.log.all(), args)
}

// WebhookEvent returns one entry of the webhook log.
func (q *queries) WebhookEvent(ctx context.Context, args struct{ ID graphql.ID }) (*webhookEvent, error) {
	if err := allow(ctx, "workflow:read", "webhookEvent"); err != nil {
		return nil, err
	}
	events := q.log.all()
	if i := slices.IndexFunc(events, func(e *webhookEvent) bool { return e.ID == args.ID }); i >= 0 {
		return events[i], nil
	}
	return nil, nil
}

// documentedQueries are those of the service's documents.
type documentedQueries struct{ *queries }

// Accounts is the older form of the query.
func (q *documentedQueries) Accounts(ctx context.Context, args struct {
	Filter *string
	Limit  *int32
}) ([]*account, error) {
	if err := allow(ctx, "standard:read", "accounts"); err != nil {
		return nil, err
	}
	found := namedLike(args.Filter)
	if args.Limit != nil && *args.Limit < 0 {
		return nil, errors.New("limit must not be negative")
	}
	if args.Limit != nil {
		found = found[:min(int(*args.Limit), len(found))]
	}
	return found, nil
}

// account is a customer of the billing service.
type account struct {
	ID         graphql.ID
	Name       *string
	BillingDay *int32
	accountDetails
}

// accountDetails are the fields of an account that the sandbox has no values for.
type accountDetails struct {
	AnnualRevenue, Employees, NetPaymentDays                                         *int32
	AddressValidated                                                                 *bool
	CreatedAt, UpdatedAt                                                             *moment
	AccountTypeID, BillingContactID, CurrencyID, GroupID, IndustryID, OwnerUserID    *graphql.ID
	BillingCity, BillingCountry, BillingState, BillingStreet, BillingZip             *string
	ShippingCity, ShippingCountry, ShippingState, ShippingStreet, ShippingZip        *string
	Code, Description, Duns, EntityUseCode, Fax, Phone, TaxNumber, Timezone, Website *string
}

// Platform is what the service has configured for a platform.
type Platform struct {
	ID                                              graphql.ID
	Code, Name                                      *string
	WebhookURL, WebhookSigningKey, WebhookAuthToken *string
	ProvisioningEnabled, CheckoutValidationEnabled  *bool
}

// platforms returns those of Platforms, and those that only a tenant's webhook names.
func (b *records) platforms() []*Platform {
	var all []*Platform
	if b.Platforms != nil {
		all = b.Platforms()
	}
	for _, t := range b.book.list() {
		p := t.Platform
		known := func(q *Platform) bool { return *q.Code == *p.Code }
		if p != nil && p.Code != nil && !slices.ContainsFunc(all, known) {
			all = append(all, &Platform{ID: p.ID.text(), Code: p.Code, Name: p.Name})
		}
	}
	return all
}

// tenantNode is a tenant as its last webhook describes it.
type tenantNode struct {
	ID                       graphql.ID
	Code, Name, Subdomain    *string
	Platform                 *Platform
	Account                  *account
	CreatedAt, UpdatedAt     moment
	LatestProvisioningChange *provisioningChange

	held *bookTenant
}

type provisioningChange struct {
	ID                   graphql.ID
	Change               *anyJSON
	Features             *string
	CreatedAt, UpdatedAt *moment
}

func (b *records) tenants() []*tenantNode {
	platforms := b.platforms()
	var all []*tenantNode
	for _, t := range b.book.list() {
		n := &tenantNode{ID: t.ID.text(), Code: &t.Code, Name: t.Name, CreatedAt: t.created, UpdatedAt: t.updated, held: t}
		if t.Platform != nil && t.Platform.Code != nil {
			n.Platform = platforms[slices.IndexFunc(platforms, func(p *Platform) bool { return *p.Code == *t.Platform.Code })]
		}
		if a := t.Account; a != nil {
			n.Account = &account{ID: a.ID.text(), Name: a.Name}
		}
		n.LatestProvisioningChange = &provisioningChange{n.ID, &anyJSON{t.change}, new(string(t.features())), &t.created, &t.updated}
		all = append(all, n)
	}
	return all
}

type subscriptionNode struct {
	ID                                               graphql.ID
	State                                            string
	StartDate, EndDate, TrialStartDate, TrialEndDate *day
	Plan, PriceList, Product                         *bookCode
	Tenant                                           *tenantNode
	Charges                                          *[]charge
}

type charge struct {
	Quantity *int32
	Feature  *bookCode
}

func (t *tenantNode) subscriptions() (all []*subscriptionNode) {
	for _, s := range t.held.subscriptions() {
		n := &subscriptionNode{
			s.ID.text(), strings.ToUpper(s.State), s.StartDate, s.EndDate, s.TrialStartDate, s.TrialEndDate,
			s.Plan, s.PriceList, s.Product, t, new([]charge),
		}
		for _, f := range s.Features {
			c := charge{nil, &f.bookCode}
			if f.Quantity != nil {
				c.Quantity = new(int32(min(*f.Quantity, math.MaxInt32)))
			}
			*n.Charges = append(*n.Charges, c)
		}
		all = append(all, n)
	}
	return all
}
