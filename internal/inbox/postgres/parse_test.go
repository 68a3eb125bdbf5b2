package postgres

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestParse(t *testing.T) {
	for address, want := range map[string]string{
		"postgres://u@h/db": "",
		"postgres://u@[::1]:5432,b:5433/db?target_session_attrs=read-write": "",
		"postgres://u:hidden@h/db?schema=other_1":                           "",
		"postgres://u:hidden@h/db?schema=":                                  "schema",
		"postgres://u:hidden@h/db?schema=a%22b":                             "schema",
		"postgres://u:hidden@h/db?search_path=x":                            "search_path",
		"postgres://u:hidden@h/db?pool_max_conns=9":                         "pool_max_conns",
		"postgres://u:hidden@h:port/db":                                     "address",
		"postgres://u:hidden@h/db?sslmode=maybe":                            "sslmode",
		"postgres://u:hidden@h/db?%zz":                                      "parameters",
		"postgres://u:hidden@h/db?sslrootcert=/dev/zero":                    "sslrootcert",
		"postgres://u:12?hidden@h/db":                                       "address", // the password is 12?hidden
		"postgres://u:1@2?hidden@h/db":                                      "address", // the password is 1@2?hidden
	} {
		_, err := Parse(address)
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", address, err, want)
		case err != nil && strings.Contains(err.Error(), "hidden"):
			t.Errorf("%s: the error shows the password: %v", address, err)
		}
	}
}

// PostgreSQL's own variables may be there for other programs. What they set for a session is not the address's.
func TestVariablesOfOtherPrograms(t *testing.T) {
	t.Setenv("PGTZ", "UTC")
	t.Setenv("PGOPTIONS", "-c search_path=theirs")
	t.Setenv("PGAPPNAME", "theirs")
	a, err := Parse("postgres://u@h/db")
	if err != nil {
		t.Fatal(err)
	}
	if got := a.config.ConnConfig.RuntimeParams; len(got) != 1 || got["application_name"] != "usher" {
		t.Error(got)
	}
}

// FuzzParse: no address makes it panic, or show a password.
func FuzzParse(f *testing.F) {
	f.Add("postgres://u:%s@h/db?schema=x")
	f.Fuzz(func(t *testing.T, s string) {
		if _, err := Parse("postgres://u:hunter2x@" + s); err != nil && strings.Contains(err.Error(), "hunter2x") {
			t.Errorf("%v", err)
		}
	})
}

// A pooler in transaction mode loses prepared statements. The error says what to set.
func TestPoolerWithoutItsSetting(t *testing.T) {
	for _, code := range []string{"26000", "42P05"} {
		got := describe(&pgconn.PgError{Code: code, Severity: "ERROR"}).Error()
		if !strings.Contains(got, "default_query_exec_mode=exec") {
			t.Error(got)
		}
	}
}
