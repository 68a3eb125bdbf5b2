-- Each customer, and whether it uses more seats than it has paid for. An unknown tenant is neither yes nor no, so the report names it.
SELECT c.tenant, c.seats, e."limit",
	CASE
		WHEN t.features_known IS NOT TRUE THEN 'unknown'
		WHEN e.feature IS NULL THEN 'not allowed'
		WHEN c.seats > e."limit" THEN 'too many'
		ELSE 'fine' -- also without a limit, which is null
	END AS state
FROM customers c
LEFT JOIN usher.tenants t ON t.tenant = c.tenant AND t.platform = 'eu'
LEFT JOIN usher.entitlements e ON e.tenant = c.tenant AND e.platform = 'eu' AND e.feature = 'users'
ORDER BY c.id;
