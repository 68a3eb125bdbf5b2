package examples

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"usher/internal/testkit/pgtest"
)

// The SQL of the example runs as it is: an application with the three grants joins its customers with what
// they may use, and its policy hides the rows of tenants that may not use them.
func TestSQL(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	server.Exec(t, "CREATE ROLE shop LOGIN; CREATE SCHEMA shop AUTHORIZATION shop")
	p := entitledIn(t, server.DSN())
	for tenant, features := range map[string]string{"big": `{"code":"users"}`, "none": `{"code":"sso"}`} {
		p.webhook(t, "eu", tenant, features)
	}
	p.webhook(t, "other", "small", `{"code":"users"},{"code":"reports"}`) // the same code on another platform
	script := func(name string) string {
		text, err := os.ReadFile("sql/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	server.Exec(t, script("grants.sql"))

	shop, err := pgx.Connect(t.Context(), strings.Replace(server.DSN(), "usher@", "shop@", 1)+"&default_query_exec_mode=simple_protocol")
	if err != nil {
		t.Fatal(err)
	}
	defer shop.Close(context.Background())
	do := func(statement string) error { _, err := shop.Exec(t.Context(), statement); return err }
	all := func(query string) string {
		t.Helper()
		rows, err := shop.Query(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for rows.Next() {
			values, err := rows.Values()
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, strings.TrimSuffix(fmt.Sprintln(values...), "\n"))
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		return strings.Join(lines, "\n")
	}
	if err := do(script("tables.sql") + `;INSERT INTO customers VALUES (1, 'acme', 20), (2, 'brücke & söhne', 1), (3, 'nobody', 5), (4, 'big', 1000), (5, 'none', 3)`); err != nil {
		t.Fatal(err)
	}
	if got, want := all(script("seats.sql")), "acme 20 25 fine\nbrücke & söhne 1 <nil> not allowed\nnobody 5 <nil> unknown\nbig 1000 <nil> fine\nnone 3 <nil> not allowed"; got != want {
		t.Errorf("the report says\n%s\nwant\n%s", got, want)
	}
	if do("UPDATE customers SET seats = 26 WHERE id = 1") != nil || !strings.Contains(all(script("seats.sql")), "acme 26 25 too many") {
		t.Errorf("the report says\n%s", all(script("seats.sql")))
	}

	for _, step := range []struct {
		tenant  string
		allowed bool
	}{{"acme", true}, {"brücke & söhne", true}, {"small", false}, {"none", false}, {"nobody", false}, {"", false}} {
		if err := do("SET app.tenant = '" + step.tenant + "'"); err != nil {
			t.Fatal(err)
		}
		err := do("INSERT INTO reports (tenant, title) VALUES ('" + step.tenant + "', 'one')")
		if got := all("SELECT tenant, title FROM reports"); (err == nil) != step.allowed || (got == step.tenant+" one") != step.allowed {
			t.Errorf("%s: %v, and sees %q", step.tenant, err, got)
		}
	}
	p.webhook(t, "eu", "acme", `{"code":"users"}`)
	if do("SET app.tenant = 'acme'") != nil || all("SELECT title FROM reports") != "" {
		t.Error("a tenant that may no longer use reports still sees them")
	}
}
