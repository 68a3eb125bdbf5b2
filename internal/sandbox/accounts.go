package sandbox

import "sync"

// inventedAccount is a customer of the billing service. The GraphQL endpoint
// lists them, and the tenants of the webhooks belong to them.
type inventedAccount struct {
	number int
	name   string
}

// accounts returns the same 300 accounts at every call.
var accounts = sync.OnceValue(func() []inventedAccount {
	stems := []string{
		"Acme", "Bluebird", "Cobalt", "Dandelion", "Ember", "Fjord", "Ginkgo", "Harbour", "Indigo", "Juniper",
		"Kestrel", "Lantern", "Meridian", "Nimbus", "Orchard", "Pebble", "Quartz", "Rowan", "Saffron", "Tundra",
		"Umbra", "Velvet", "Willow", "Yarrow", "Zephyr", "Älvdal", "Brücke", "Café Noir", "Søndag", "Łąka",
	}
	kinds := []string{
		"GmbH", "Ltd", "Logistics", "Software", "Foods", "Robotics", "Energy", "Health", "Media", "& Sons",
	}
	all := make([]inventedAccount, 0, len(stems)*len(kinds))
	for _, kind := range kinds {
		for _, stem := range stems {
			all = append(all, inventedAccount{1001 + len(all), stem + " " + kind})
		}
	}
	return all
})
