package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	tenantsEach = 4  // how many tenants a sender has, where it does not matter
	copyEach    = 10 // every so manieth webhook of a sender is a copy, if copies are asked for
)

// sender sends webhooks one after the other over one connection. It speaks just as
// much HTTP as that takes: the load should leave the machine to usher.
type sender struct {
	conn     net.Conn
	answers  *bufio.Reader
	host     string
	platform string // of its tenants
	tenants  []string
	sent     []int // of each tenant, acknowledged; also the number of its next one
	turn     int
	padding  int  // bytes that make a webhook larger
	copies   bool // some webhooks are sent twice
	count    int
	request  bytes.Buffer
	body     bytes.Buffer
}

// fleet is so many senders to one usher, each with tenants of its own.
type fleet []*sender

// newFleet connects. No two fleets have a tenant in common: names are made of round.
func newFleet(address, round string, senders, tenants int) (fleet, error) {
	var f fleet
	for i := range senders {
		s := &sender{host: address, platform: "crm", sent: make([]int, tenants)}
		for n := range tenants {
			s.tenants = append(s.tenants, fmt.Sprintf("%s-%d-%d", round, i, n))
		}
		f = append(f, s)
	}
	return f, f.connect()
}

// connect makes new connections.
func (f fleet) connect() (err error) {
	f.close()
	for _, s := range f {
		if s.conn, err = net.Dial("tcp", s.host); err != nil {
			f.close()
			return err
		}
		s.answers = bufio.NewReader(s.conn)
	}
	return nil
}

func (f fleet) close() {
	for _, s := range f {
		if s.conn != nil {
			s.conn.Close()
		}
	}
}

// load is what a fleet got done.
type load struct {
	acknowledged int
	copies       int // of these: copies
	refused      int // answered otherwise than with 200
	took         time.Duration
	latencies    []time.Duration // sorted
}

func (l load) rate() float64 { return float64(l.acknowledged) / l.took.Seconds() }

// run has every sender send as fast as it is answered, for so long.
func (f fleet) run(ctx context.Context, length time.Duration) (load, error) {
	began := time.Now()
	return f.each(func(_ int, s *sender, l *load) (err error) {
		for err == nil && time.Since(began) < length && ctx.Err() == nil {
			err = s.send(l)
		}
		return errors.Join(err, ctx.Err())
	})
}

// steady has the senders send so many per second, in turns, until stop is closed.
func (f fleet) steady(stop <-chan struct{}, rate int) (load, error) {
	began := time.Now()
	return f.each(func(i int, s *sender, l *load) error {
		for n := i; ; n += len(f) {
			select {
			case <-stop:
				return nil
			case <-time.After(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(rate)))):
			}
			if err := s.send(l); err != nil {
				return err
			}
		}
	})
}

// each runs do for every sender at once, and adds up what they got done.
func (f fleet) each(do func(i int, s *sender, l *load) error) (load, error) {
	loads, errs := make([]load, len(f)), make([]error, len(f))
	var all sync.WaitGroup
	began := time.Now()
	for i, s := range f {
		all.Go(func() { errs[i] = do(i, s, &loads[i]) })
	}
	all.Wait()
	total := load{took: time.Since(began)}
	for _, l := range loads {
		total.acknowledged += l.acknowledged
		total.copies += l.copies
		total.refused += l.refused
		total.latencies = append(total.latencies, l.latencies...)
	}
	slices.Sort(total.latencies)
	return total, errors.Join(errs...)
}

// send sends the next webhook of the tenant whose turn it is, and notes the answer.
func (s *sender) send(l *load) error {
	i := s.turn
	s.turn = (s.turn + 1) % len(s.tenants)
	s.count++
	n := s.sent[i]
	again := s.copies && s.count%copyEach == 0 && n > 0
	if again {
		n--
	}
	s.body.Reset()
	writeBody(&s.body, s.platform, s.tenants[i], n)
	if s.padding > 0 {
		s.body.Truncate(s.body.Len() - 1)
		s.body.WriteString(`,"padding":"` + strings.Repeat("x", s.padding) + `"}`)
	}
	s.request.Reset()
	fmt.Fprintf(&s.request,
		"POST /webhooks HTTP/1.1\r\nHost: %s\r\nUser-Agent: billing\r\nContent-Type: application/json\r\n"+
			"Content-Length: %d\r\n\r\n",
		s.host, s.body.Len())
	s.request.Write(s.body.Bytes())

	began := time.Now()
	if _, err := s.conn.Write(s.request.Bytes()); err != nil {
		return err
	}
	status, err := readAnswer(s.answers)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		l.refused++ // its number is used again, so that there is no gap
		return nil
	}
	if again {
		l.copies++
	} else {
		s.sent[i]++
	}
	l.acknowledged++
	l.latencies = append(l.latencies, time.Since(began))
	return nil
}

// writeBody writes a tenant's nth webhook, of the documented shape and 3 KB long.
// Where the tenant and the number stand in it, the receiver looks for them.
func writeBody(b *bytes.Buffer, platform, tenant string, n int) {
	b.WriteString(`{"type":"TenantProvisioningChange","payload":{"tenant":{`)
	fmt.Fprintf(b, `"id":4711,"code":"%s","name":"Älvdal Logistics",`, tenant)
	fmt.Fprintf(b, `"platform":{"id":11,"code":"%s","name":"CRM Cloud"},`, platform)
	b.WriteString(`"account":{"id":1027,"name":"Älvdal Logistics","billing_day":14,` +
		`"contacts":[`)
	for id := range 16 {
		b.WriteString(`{"id":` + strconv.Itoa(9000+id) + `,"first_name":"Maja","last_name":"Ångström",` +
			`"email":"someone.else@customer1027.example"},`)
	}
	b.WriteString(`{"id":9021,"first_name":"Ada","last_name":"Kovač","email":"contact1@customer1027.example"},` +
		`{"id":9022,"first_name":"Jörg","last_name":"Weiß","email":"contact2@customer1027.example"}]}},` +
		`"change":{"features":[` +
		`{"code":"users","name":"Users","value":"","quantity":`)
	b.WriteString(strconv.Itoa(n))
	b.WriteString(`},{"code":"pipelines","name":"Pipelines","value":"","quantity":5},` +
		`{"code":"sso","name":"Single sign-on","value":"saml","quantity":null}],` +
		`"subscriptions":[{"id":70012,"state":"active",` +
		`"start_date":"2026-01-05","end_date":"2027-01-04","trial_start_date":null,"trial_end_date":null,` +
		`"plan":{"code":"standard","name":"Standard"},"price_list":{"code":"eur-2026","name":"Euro 2026"},` +
		`"product":{"code":"crm-suite","name":"CRM Suite"},` +
		`"features":[{"code":"users","name":"Users","value":"","quantity":`)
	b.WriteString(strconv.Itoa(n))
	b.WriteString(`},{"code":"pipelines","name":"Pipelines","value":"","quantity":5},` +
		`{"code":"sso","name":"Single sign-on","value":"saml","quantity":null}]}]}}}`)
}
