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
	"strings"
	"sync"
	"time"
)

// copyEach: every so manieth webhook of a sender is a copy of the tenant's last one.
const copyEach = 10

// A sender sends webhooks one after the other over one connection. It speaks just as much HTTP as that takes: the
// machine should be left to usher.
type sender struct {
	conn    net.Conn
	answers *bufio.Reader
	host    string
	tenants []string
	sent    []int // of each tenant, acknowledged; also the number of its next one
	turn    int   // whose turn it is
	body    func(tenant string, n int) string
	count   int
	request bytes.Buffer
}

// A fleet is so many senders to one usher, each with tenants of its own.
type fleet []*sender

func newFleet(address, name string, senders, tenants int) (f fleet) {
	for i := range senders {
		s := &sender{host: address, sent: make([]int, tenants), body: bodyOf}
		for n := range tenants {
			s.tenants = append(s.tenants, fmt.Sprintf("%s-%d-%d", name, i, n))
		}
		f = append(f, s)
	}
	return f
}

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

// run makes every sender send as fast as it is answered, for so long.
func (f fleet) run(ctx context.Context, length time.Duration) (load, error) {
	began := time.Now()
	return f.each(func(s *sender, l *load) (err error) {
		for err == nil && time.Since(began) < length && ctx.Err() == nil {
			err = s.send(l)
		}
		return errors.Join(err, ctx.Err())
	})
}

// each runs do for every sender at once, and adds up what they got done.
func (f fleet) each(do func(s *sender, l *load) error) (load, error) {
	loads, errs := make([]load, len(f)), make([]error, len(f))
	var all sync.WaitGroup
	began := time.Now()
	for i, s := range f {
		all.Go(func() { errs[i] = do(s, &loads[i]) })
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
	again := s.count%copyEach == 0 && n > 0
	if again {
		n--
	}
	body := s.body(s.tenants[i], n)
	s.request.Reset()
	fmt.Fprintf(&s.request,
		"POST /webhooks HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", s.host, len(body), body)
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

// bodyOf is a tenant's nth webhook, of the documented shape and 3 KB long. The receiver looks for the tenant and the
// number where they first stand in it.
func bodyOf(tenant string, n int) string { return fmt.Sprintf(bodyFormat, tenant, n) }

var bodyFormat = `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"%s","id":4711,"name":"Älvdal Logistics",` +
	`"platform":{"id":11,"code":"crm","name":"CRM Cloud"},` +
	`"account":{"id":1027,"name":"Älvdal Logistics","billing_day":14,"contacts":[` +
	strings.Repeat(`{"id":9000,"first_name":"Maja","last_name":"Ångström","email":"someone.else@customer1027.example"},`, 20) +
	`{"id":9021,"first_name":"Ada","last_name":"Kovač","email":"contact1@customer1027.example"}]}},` +
	`"change":{"features":[{"code":"users","name":"Users","value":"","quantity":%d},` +
	`{"code":"pipelines","name":"Pipelines","value":"","quantity":5},` +
	`{"code":"sso","name":"Single sign-on","value":"saml","quantity":null}],` +
	`"subscriptions":[{"id":70012,"state":"active","start_date":"2026-01-05","end_date":"2027-01-04",` +
	`"trial_start_date":null,"trial_end_date":null,"plan":{"code":"standard","name":"Standard"},` +
	`"price_list":{"code":"eur-2026","name":"Euro 2026"},"product":{"code":"crm-suite","name":"CRM Suite"},"features":[]}]}}}`
