#!/bin/sh
# Runs one of the two PostgreSQL servers of compose.cluster.yaml. PEER is the address of the other one. FIRST is set for
# the one that starts empty; the other starts as its copy. The one that was promoted is the primary, and the one that
# comes back follows it.
#
# Nothing here promotes a server by itself: only somebody who knows for sure that the other one is gone can do that. In
# production, leave it to Patroni, CloudNativePG or your cloud.
set -eu
PGPASSWORD=$(cat /run/secrets/postgres-password)
export PGPASSWORD PGCONNECT_TIMEOUT=2

ask_peer() { psql -d "$PEER" --no-psqlrc --quiet --tuples-only --no-align --command="$1"; }
# yes, no, or nothing: it can't be asked.
peer_is_primary() { ask_peer "SELECT CASE WHEN pg_is_in_recovery() THEN 'no' ELSE 'yes' END" 2>/dev/null || true; }

make_empty() {
	initdb --username=postgres --pwfile=/run/secrets/postgres-password --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8 --locale=C
	printf 'host %s all all scram-sha-256\n' all replication >>"$PGDATA/pg_hba.conf"
	# What usher needs: a role, and a database in which it may make its schema.
	postgres --single -D "$PGDATA" postgres >/dev/null <<-END
		CREATE ROLE usher LOGIN PASSWORD '$(cat /run/secrets/inbox-password)'
		CREATE DATABASE usher OWNER usher
	END
}

follow_peer() {
	rm -rf "$PGDATA"
	pg_basebackup --dbname="$PEER" --pgdata="$PGDATA" --write-recovery-conf --checkpoint=fast
	# From here on the primary confirms only what this server has, too: what usher answered 200 survives the loss of one.
	ask_peer "ALTER SYSTEM SET synchronous_standby_names = '*'"
	ask_peer 'SELECT pg_reload_conf()' >/dev/null
}

if [ -e "$PGDATA/standby.signal" ]; then
	: # it goes on following
elif [ -e "$PGDATA/PG_VERSION" ]; then
	# It was the primary. Was the other one promoted meanwhile? Both may be starting now.
	for _ in 1 2 3 4 5; do
		case $(peer_is_primary) in
		yes) follow_peer; break ;;
		no) break ;;
		esac
		sleep 1
	done
elif [ -n "${FIRST-}" ]; then
	make_empty
else
	until [ "$(peer_is_primary)" = yes ]; do sleep 1; done
	follow_peer
fi
exec postgres -h 0.0.0.0 -p 5432
