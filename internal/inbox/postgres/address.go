package postgres

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"usher/internal/inbox/engine"
	"usher/internal/secret"
)

// An Address says where the database is. Parse makes it.
type Address struct {
	config *pgxpool.Config
	schema string
}

// connectPatience is how long usher waits for a connection.
const connectPatience = 5 * time.Second

// Parse reads an address as every PostgreSQL client takes it, postgres://user@host[,host]/database. One more
// parameter, schema, is usher's own. Errors never show a password.
func Parse(address string) (*Address, error) {
	base, text, _ := strings.Cut(address, "?") // url.Parse can't read an address with several hosts
	query, err := url.ParseQuery(text)
	if err != nil {
		return nil, errors.New("its parameters can't be read")
	}
	schema := query.Get("schema")
	if !query.Has("schema") {
		schema = "usher"
	}
	if schema == "" || len(schema) > 63 || strings.Trim(schema, nameCharacters) != "" {
		return nil, errors.New("its schema should be a name of 1 to 63 letters, digits and underscores")
	}
	query.Del("schema")
	for _, name := range ownParameters {
		if query.Has(name) {
			return nil, fmt.Errorf("it has the parameter %s, which usher sets itself", name)
		}
	}
	// pgx reads these files without a limit, and waits for a pipe.
	for _, name := range []string{"sslrootcert", "sslcert", "sslkey"} {
		if file := query.Get(name); file != "" && !(name == "sslrootcert" && file == "system") {
			if _, err := secret.ReadRegular(file); err != nil {
				return nil, fmt.Errorf("its %s cannot be used: %w", name, err)
			}
		}
	}
	config, err := pgxpool.ParseConfig(base + "?" + query.Encode())
	if err != nil {
		return nil, errors.New(parseReason(err))
	}
	for name := range config.ConnConfig.RuntimeParams {
		switch {
		case name == "application_name":
		case !query.Has(name): // from the environment (PGTZ, PGOPTIONS), for other programs
			delete(config.ConnConfig.RuntimeParams, name)
		case strings.Contains(text, "@"): // a question mark in the password: the name may be a part of it
			return nil, errors.New("it can't be read as an address: write a ? inside the password as %3F")
		default:
			// A pooler refuses parameters that it does not know, and passes none on.
			return nil, fmt.Errorf("it has the parameter %q, which usher does not know", name)
		}
	}
	config.ConnConfig.RuntimeParams["application_name"] = "usher"
	config.ConnConfig.ConnectTimeout = connectPatience
	dialer := &net.Dialer{
		Timeout: connectPatience,
		Control: userTimeout,
		KeepAliveConfig: net.KeepAliveConfig{
			Enable:   true,
			Idle:     5 * time.Second,
			Interval: 2 * time.Second,
			Count:    3,
		},
	}
	config.ConnConfig.DialFunc = dialer.DialContext
	config.MaxConns = engine.MaxReaders
	config.MinConns = 0
	config.MaxConnIdleTime = time.Minute
	config.HealthCheckPeriod = time.Minute
	return &Address{config, schema}, nil
}

// nameCharacters are those that the name of a schema may have.
const nameCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"

// ownParameters are those of an address that usher sets itself.
var ownParameters = []string{
	"pool_max_conns",
	"pool_min_conns",
	"pool_max_conn_lifetime",
	"pool_max_conn_idle_time",
	"pool_health_check_period",
	"pool_max_conn_lifetime_jitter",
}

// parseReason returns pgx's error about an address without the address itself, which may have a password.
func parseReason(err error) string {
	var parse *pgconn.ParseConfigError
	if errors.As(err, &parse) {
		if inner := errors.Unwrap(parse); inner != nil {
			return inner.Error()
		}
	}
	return "it can't be read as an address"
}

// Unencrypted says whether the connection goes to another host without TLS that checks the server's name: then others
// could read or change what usher sends.
func (a *Address) Unencrypted() bool {
	c := a.config.ConnConfig
	first := &pgconn.FallbackConfig{Host: c.Host, TLSConfig: c.TLSConfig}
	return slices.ContainsFunc(append(slices.Clone(c.Fallbacks), first), func(to *pgconn.FallbackConfig) bool {
		ip := net.ParseIP(to.Host)
		here := strings.HasPrefix(to.Host, "/") || to.Host == "localhost" || ip != nil && ip.IsLoopback()
		return !here && (to.TLSConfig == nil || to.TLSConfig.InsecureSkipVerify)
	})
}

// HasPassword says whether a password is part of the address.
func (a *Address) HasPassword() bool { return a.config.ConnConfig.Password != "" }
