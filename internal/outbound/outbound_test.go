package outbound_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"usher/internal/outbound"
	"usher/internal/settings"
	"usher/internal/testkit"
	"usher/tokens"
)

// Ports share a token by where their secret comes from: a port whose secret is in a file
// of its own follows that file, whatever another port's held at the start.
func TestPortsShareATokenBySource(t *testing.T) {
	s := testkit.NewService(t)
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first, second := write("first", "t0psecret"), write("second", "t0psecret")
	environ := append(s.Environ(), "USHER_CLIENT_SECRET=", "USHER_CLIENT_SECRET_FILE="+first,
		"USHER_PORTS_0_LISTEN=127.0.0.1:0",
		"USHER_PORTS_1_LISTEN=127.0.0.1:0", "USHER_PORTS_1_CLIENT_SECRET_FILE="+first,
		"USHER_PORTS_2_LISTEN=127.0.0.1:0", "USHER_PORTS_2_CLIENT_SECRET_FILE="+second,
		"USHER_PORTS_3_LISTEN=127.0.0.1:0", "USHER_PORTS_3_CLIENT_SECRET=t0psecret",
		"USHER_PORTS_4_LISTEN=127.0.0.1:0", "USHER_PORTS_4_CLIENT_SECRET=t0psecret",
		"USHER_PORTS_5_LISTEN=127.0.0.1:0", "USHER_PORTS_5_CLIENT_SECRET=another")
	read, err := settings.Read(environ)
	if err != nil {
		t.Fatal(err)
	}
	read.Outbound.Log = slog.New(slog.DiscardHandler)
	o := outbound.New(read.Outbound.Config)
	identityOf := func(name string) *outbound.Identity {
		return o.Ports[slices.IndexFunc(o.Ports, func(p *outbound.Port) bool { return p.Name == name })].Identity
	}
	for name, sharedWith := range map[string]string{"0": "main", "1": "main", "2": "2", "3": "3", "4": "3", "5": "5"} {
		if identityOf(name) != identityOf(sharedWith) {
			t.Errorf("port %s does not share with %s", name, sharedWith)
		}
	}
	identities := make(map[*outbound.Identity]bool)
	for _, p := range o.Ports {
		identities[p.Identity] = true
	}
	if n := len(identities); n != 4 {
		t.Errorf("%d tokens, want 4: of each file, of a value, of another", n)
	}
}

// Who reads that the API client lacks a grant flow must not go and change its secret.
func TestAdviceNamesTheGrantFlow(t *testing.T) {
	s := testkit.NewService(t)
	read, err := settings.Read(s.Environ())
	if err != nil {
		t.Fatal(err)
	}
	read.Outbound.Log = slog.New(slog.DiscardHandler)
	o := outbound.New(read.Outbound.Config)
	refused := fmt.Errorf("no token: %w", &tokens.RejectedError{Status: 403, Code: "unauthorized_client"})
	if got := o.Advise(refused, o.Ports[0]); !strings.Contains(got, "grant flows") || strings.Contains(got, "CLIENT_SECRET") {
		t.Error(got)
	}
}
