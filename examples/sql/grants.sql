-- Run this once, as usher's role or as an administrator, after usher has started for the first time. shop is your application's role.
GRANT USAGE ON SCHEMA usher TO shop;
GRANT SELECT ON usher.tenants, usher.entitlements TO shop;
GRANT EXECUTE ON FUNCTION usher.allowed TO shop;
