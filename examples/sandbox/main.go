// Sandbox is the billing service that usher is tested with, and a receiver, as a
// program of its own: to try a deployment, or your own settings, without an account.
// Its API client is "demo" with the secret "demo-secret"; it keeps everything in memory.
//
//	go run ./examples/sandbox
//	go run ./examples/sandbox -webhooks http://127.0.0.1:8090/webhooks -token SECRET
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"usher/internal/sandbox"
)

func main() {
	billing := flag.String("billing", "127.0.0.1:9000", "where the billing service listens")
	receiver := flag.String("receiver", "127.0.0.1:9001", "where the receiver listens")
	webhooks := flag.String("webhooks", "", "where to send webhooks; none are sent without it")
	token := flag.String("token", "", "to send with each webhook, as Authorization: Bearer")
	every := flag.Duration("every", 5*time.Second, "time between two webhooks")
	life := flag.Duration("token-life", 2*time.Minute, "how long its access tokens live")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	service := sandbox.NewBilling(sandbox.Client{
		ID: "demo", Secret: "demo-secret", Scopes: []string{"standard:read", "standard:write"}, TokenLife: *life,
	})
	application := sandbox.NewReceiver()
	application.OnDelivery = func(r *http.Request, body []byte) {
		log.Printf("receiver: %s, %d bytes, webhook-id %s", r.URL.Path, len(body), r.Header.Get("Webhook-Id"))
	}
	serve("billing service", *billing, service)
	serve("receiver", *receiver, application)
	if *webhooks == "" {
		<-ctx.Done()
		return
	}
	sender := sandbox.NewSender(*webhooks, uint64(time.Now().UnixNano()))
	if *token != "" {
		sender.Header = http.Header{"Authorization": {"Bearer " + *token}}
	}
	send(ctx, sender, *every)
}

// serve listens before it returns, so that what follows can rely on it.
func serve(name, addr string, h http.Handler) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("%s: http://%s", name, l.Addr())
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	go func() { log.Fatal(server.Serve(l)) }()
}

// send sends webhooks until ctx ends.
func send(ctx context.Context, sender *sandbox.Sender, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		entry, err := sender.Next(ctx)
		outcome := fmt.Sprintf("%d %s", entry.Status, entry.Header.Get("Usher-Decision"))
		if err != nil {
			outcome = err.Error()
		}
		if ctx.Err() == nil {
			log.Printf("webhook: %s: %s", entry.What, outcome)
		}
	}
}
