package sandbox

import (
	"strconv"
	"sync"

	"github.com/graph-gophers/graphql-go"
)

// account is an invented customer of the billing service. The GraphQL endpoint
// lists them, and the tenants of the webhooks belong to them.
type account struct {
	ID   int
	Name string
}

// accountNode is an account in the GraphQL API.
type accountNode struct {
	ID   graphql.ID
	Name string
}

func (a account) node() accountNode {
	return accountNode{graphql.ID(strconv.Itoa(a.ID)), a.Name}
}

const firstAccountID = 1001

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
			all = append(all, account{firstAccountID + len(all), stem + " " + kind})
		}
	}
	return all
})
