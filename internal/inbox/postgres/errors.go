package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"usher/internal/inbox/engine"
)

// A SetupError says that somebody has to change something, and that waiting does not help.
type SetupError struct{ Err error }

func (e *SetupError) Error() string { return e.Err.Error() }
func (e *SetupError) Unwrap() error { return e.Err }

func isCode(err error, code string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == code
}

// severity returns an error's severity in English, whatever the server's language is. A pooler sends only the
// localized one, in English.
func severity(e *pgconn.PgError) string { return cmp.Or(e.SeverityUnlocalized, e.Severity) }

// describe says in words what an error means for the inbox. An error that somebody has to correct becomes a
// *SetupError, and one that a statement's values have caused a *engine.StatementError.
func describe(err error) error {
	if err == nil || errors.Is(err, engine.ErrDoubt) {
		return err
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		var setup *SetupError
		if errors.As(err, &setup) {
			return err
		}
		if errors.Is(err, context.DeadlineExceeded) {
			// pgx would say: failed to receive message: timeout: context deadline exceeded.
			return &engine.AwayError{Err: errors.New("the inbox's database does not answer")}
		}
		return &engine.AwayError{Err: fmt.Errorf("the inbox's database can't be reached: %w", oneLine{err})}
	}
	switch {
	case pg.Code == "28P01" || pg.Code == "28000":
		return &SetupError{fmt.Errorf("the inbox's database refuses the user: %s "+
			"(check USHER_WEBHOOK_INBOX and USHER_WEBHOOK_INBOX_PASSWORD)", pg.Message)}
	case pg.Code == "3D000":
		return &SetupError{fmt.Errorf("the inbox's database does not exist: %s; create it with CREATE DATABASE",
			pg.Message)}
	case pg.Code == "26000" || pg.Code == "42P05": // a prepared statement is missing, or there already
		return fmt.Errorf("the inbox's database: %w; "+
			"a pooler in transaction mode needs default_query_exec_mode=exec in USHER_WEBHOOK_INBOX", pg)
	case pg.Code == "25006":
		return fmt.Errorf("the inbox's database can't be written: %w; it is a standby, or was made read-only; "+
			"with several hosts in USHER_WEBHOOK_INBOX add target_session_attrs=read-write", engine.ErrReadOnly)
	case pg.Code == "55P03":
		return &engine.AwayError{Err: engine.ErrLocked}
	case strings.HasPrefix(pg.Code, "22"), strings.HasPrefix(pg.Code, "23"), pg.Code == "54000",
		pg.Code == "57014",                                         // one piece of work takes too long
		pg.Code == "XX001", pg.Code == "XX002", pg.Code == "P0001": // a damaged row or index, or somebody's trigger
		return &engine.StatementError{Err: err}
	case pg.Code == "53100":
		return &engine.FullError{Of: "the inbox's database", Since: time.Now(), Err: err}
	// It starts, stops, or has too many clients.
	case strings.HasPrefix(pg.Code, "08"), strings.HasPrefix(pg.Code, "53"), strings.HasPrefix(pg.Code, "57"):
		return &engine.AwayError{Err: fmt.Errorf("the inbox's database: %w", pg)}
	}
	return fmt.Errorf("the inbox's database: %w", pg) // without the list of tries if it cannot connect
}

// oneLine is an error of pgx when it cannot connect. pgx names the user and the database, and has a line for each
// try, with TLS and without: what is the same is said once.
type oneLine struct{ error }

func (e oneLine) Unwrap() error { return e.error }
func (e oneLine) Error() string {
	err := e.error
	if c, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		err = c.Unwrap()
	}
	return strings.Join(slices.Compact(strings.Split(err.Error(), "\n")), "; ")
}
