package command

import (
	"strings"

	"usher/internal/admin"
	"usher/webhookgate"
)

// buildGate puts the webhook gate together.
func (h *house) buildGate(metrics *admin.Metrics) error {
	w := &h.settings.Webhook
	m := metrics.Gate()
	cfg := webhookgate.Config{
		Path:           w.Path,
		HMACHeader:     w.HMACHeader,
		HMACStandard:   w.HMACScheme == "standard",
		AllowCIDRs:     w.allow,
		TrustedProxies: w.trusted,
		Types:          w.Types,
		Schema:         w.schema,
		MaxBody:        int64(w.MaxBody),
		DedupSize:      w.DedupSize,
		DedupWindow:    w.DedupWindow,
		ForwardURL:     w.forward,
		Timeout:        w.Timeout,
		Attempts:       w.Attempts,
		MaxInflight:    w.MaxInflight,
		Log:            h.log,
		Received:       m.Received,
		Attempted:      m.Attempted,
	}
	if w.Token != nil {
		cfg.Tokens = func() []string { return splitTokens(w.Token.Get()) }
	}
	if w.HMACSecret != nil {
		cfg.HMACSecret = w.HMACSecret.Get
	}
	if w.SignSecret != nil {
		cfg.SignSecret = w.SignSecret.Get
	}
	var err error
	if h.gate, err = webhookgate.New(cfg); err != nil {
		return err
	}
	d := &door{variable: "USHER_WEBHOOK_LISTEN", name: "webhooks", addr: w.Listen, handler: h.gate}
	if w.TLSCertFile != "" {
		if d.tls, err = webhookgate.TLSConfig(w.TLSCertFile, w.TLSKeyFile, w.TLSClientCA, h.log); err != nil {
			return err
		}
	}
	h.doors = append(h.doors, d)
	return nil
}

func splitTokens(s string) []string {
	parts := strings.Split(s, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}
