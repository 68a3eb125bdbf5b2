package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"usher/internal/settings"
)

// healthcheck is usher healthcheck: it asks a running usher whether it is ready.
func healthcheck(ctx context.Context, p Process) int {
	addr := settings.AdminListen(p.Environ)
	if addr == "off" {
		return p.failed(errors.New("USHER_ADMIN_LISTEN is off: there is no admin port"))
	}
	client, base := adminClient(addr)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/readyz", nil)
	if err != nil {
		return p.failed(fmt.Errorf("USHER_ADMIN_LISTEN: %w", err))
	}
	resp, err := client.Do(req)
	if err != nil {
		return p.failed(p.notAsked(addr, err))
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	fmt.Fprintln(p.Stdout, strings.TrimSpace(string(body)))
	if resp.StatusCode != http.StatusOK {
		return exitFailed
	}
	return exitOK
}
