// What a tenant may use, through OpenFeature: go run . TENANT [PLATFORM]
//
// A module of its own, so that usher does not depend on what it needs.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"

	"github.com/open-feature/go-sdk-contrib/providers/ofrep"
	"github.com/open-feature/go-sdk/openfeature"
)

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: go run . TENANT [PLATFORM]")
	}
	url := cmp.Or(os.Getenv("ENTITLEMENTS_URL"), "http://127.0.0.1:8070")
	provider := ofrep.NewProvider(url, ofrep.WithApiKeyAuth(os.Getenv("ENTITLEMENTS_KEY")))
	if err := openfeature.SetProviderAndWait(provider); err != nil {
		log.Fatal(err)
	}
	client := openfeature.NewClient("app")

	// The targeting key is the tenant. Take it from the session that you verified.
	attributes := map[string]any{}
	if len(os.Args) > 2 {
		attributes["platform"] = os.Args[2]
	}
	tenant := openfeature.NewEvaluationContext(os.Args[1], attributes)

	// The default is what applies when usher does not know the tenant, or cannot be
	// reached; the error says which. Choose it with care: true lets everybody in.
	ctx := context.Background()
	reports, _ := client.BooleanValueDetails(ctx, "reports", false, tenant)
	users, _ := client.IntValueDetails(ctx, "users.limit", 1, tenant)
	tier, _ := client.StringValueDetails(ctx, "tier.value", "unknown", tenant)

	fmt.Println("reports", reports.Value, cmp.Or(string(reports.ErrorCode), reports.Variant))
	fmt.Println("users.limit", users.Value, cmp.Or(string(users.ErrorCode), users.Variant))
	fmt.Println("tier.value", tier.Value, cmp.Or(string(tier.ErrorCode), tier.Variant))
}
