-- Tables of an application, in the same database as usher's inbox.

CREATE TABLE customers (
	id     bigint PRIMARY KEY,
	tenant text NOT NULL UNIQUE, -- the tenant's code in the billing service
	seats  integer NOT NULL      -- how many are in use
);

CREATE TABLE reports (
	id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	tenant text NOT NULL,
	title  text NOT NULL
);
CREATE INDEX ON reports (tenant);

-- A session works with the reports of its own tenant, and only if this tenant may use reports. The application sets the tenant when a request
-- begins: SET LOCAL app.tenant = 'acme'. The parentheses with SELECT let PostgreSQL call the function once for each query, not for each row.
ALTER TABLE reports ENABLE ROW LEVEL SECURITY;
ALTER TABLE reports FORCE ROW LEVEL SECURITY; -- for the owner of the table, too
CREATE POLICY paid ON reports USING (
	tenant = current_setting('app.tenant', true)
	AND (SELECT usher.allowed(current_setting('app.tenant', true), 'reports', platform => 'eu'))
);
