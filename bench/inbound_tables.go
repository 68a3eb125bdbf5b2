package main

import (
	"cmp"
	"fmt"
	"time"
)

// measurements are the figures of the gate, by the number of senders.
type measurements struct {
	passing, durable           map[int][]sample
	plain                      map[int][]float64 // appended and synced, each by itself
	quietPassing, quietDurable []sample          // at 64 senders, with a log of warnings alone
	alone                      []float64         // deliveries per second while nobody sends
	syncsEach                  float64           // for each transaction; 0: not counted
}

func rate(s sample) float64      { return s.rate() }
func delivered(s sample) float64 { return s.delivered }
func whole(s sample) float64     { return s.all }
func micros(s sample) float64    { return s.cpu * 1e6 }

func commits(s sample) float64 { return s.commits }

// syncs is how many it takes for one webhook.
func (m *measurements) syncs(senders int) string {
	return fmt.Sprintf("%.2f", cmp.Or(m.syncsEach, 2)*median(m.durable[senders], commits))
}

// ratio is the median of what durable reaches of pass-through in the same round: what
// else the machine does in a while hits both.
func ratio(durable, passing []sample, get func(sample) float64) string {
	var shares []float64
	for i, d := range durable {
		shares = append(shares, get(d)/passing[i].rate())
	}
	return percent(median(shares, func(f float64) float64 { return f }))
}

func latency(q float64) func(sample) float64 {
	return func(s sample) float64 { return float64(quantile(s.latencies, q)) }
}

func backlog(quarter int) func(sample) float64 {
	return func(s sample) float64 { return float64(s.backlog[quarter]) }
}

// accepted is the table of what senders see.
func (m *measurements) accepted() *table {
	t := &table{
		title: "Webhooks acknowledged per second",
		header: []string{"senders", "pass-through", "durable", "durable / pass-through", "append and sync each",
			"p50 pass", "p50 durable", "p99 pass", "p99 durable"},
	}
	for _, n := range senderCounts {
		p, d := m.passing[n], m.durable[n]
		ms := func(all []sample, q float64) string { return millis(time.Duration(median(all, latency(q)))) }
		t.add(fmt.Sprint(n), number(median(p, rate)), number(median(d, rate)), ratio(d, p, rate),
			number(median(m.plain[n], func(f float64) float64 { return f })),
			ms(p, 0.5), ms(d, 0.5), ms(p, 0.99), ms(d, 0.99))
	}
	t.note("Each sender sends its next webhook when the last one is answered; each webhook is another snapshot, of about 1.2 KB. " +
		"Pass-through answers when the receiver has; durable when the webhook is synced. " +
		"The ratio is the median of the rounds' own. " +
		"Append and sync is what a program reaches that appends each to a file and syncs it before the next.")
	return t
}

// deliveries is the table of what becomes of the webhooks meanwhile.
func (m *measurements) deliveries() *table {
	t := &table{
		title: "Durable: deliveries meanwhile",
		header: []string{"senders", "acknowledged/s", "delivered/s", "waiting at ¼", "½", "¾", "the end",
			"incl. delivery of the last/s", "CPU per webhook", "pass-through", "syncs per webhook"},
	}
	for _, n := range senderCounts {
		d := m.durable[n]
		t.add(fmt.Sprint(n), number(median(d, rate)), number(median(d, delivered)),
			number(median(d, backlog(0))), number(median(d, backlog(1))), number(median(d, backlog(2))), number(median(d, backlog(3))),
			number(median(d, whole)), number(median(d, micros))+" µs", number(median(m.passing[n], micros))+" µs", m.syncs(n))
	}
	alone := median(m.alone, func(f float64) float64 { return f })
	t.note("With nobody sending the courier delivers %s/s; at 256 senders it keeps %s of that.",
		number(alone), percent(median(m.durable[256], delivered)/alone))
	t.note("Waiting is usher_inbox_pending during the measurement, CPU that of usher until the last webhook was delivered. " +
		"What is delivered is written down together with what comes in.")
	if m.syncsEach != 0 {
		t.note("Syncs are the transactions that the inbox file has seen, times %.2f syncs for each, counted with strace in a run of its own: "+
			"it makes a sync slower, and then more webhooks share it.", m.syncsEach)
	} else {
		t.note("Syncs are the transactions that the inbox file has seen, times two: strace, which would count them, is not installed.")
	}
	return t
}

// levels is the table of what the log costs.
func (m *measurements) levels(level string) *table {
	t := &table{
		title:  "The log, at 64 senders",
		header: []string{"level", "pass-through/s", "durable/s", "durable / pass-through", "CPU pass-through", "CPU durable"},
	}
	row := func(level string, p, d []sample) {
		t.add(level, number(median(p, rate)), number(median(d, rate)), ratio(d, p, rate),
			number(median(p, micros))+" µs", number(median(d, micros))+" µs")
	}
	row(level, m.passing[64], m.durable[64])
	row("warn", m.quietPassing, m.quietDurable)
	t.note("Lines go to the null device. The inbox of the second row is new.")
	return t
}

func (g *growth) table() *table {
	t := &table{title: "Memory of the durable usher", header: []string{"after webhooks", "of its own", "mapped from files", "inbox file"}}
	for i, n := range g.after {
		t.add(fmt.Sprint(n), mebibytes(g.memory[i].anon), mebibytes(g.memory[i].file), mebibytes(g.file[i]))
	}
	t.note("Mapped pages are those of the inbox file and the program, which the kernel takes back when it needs the space.")
	return t
}

// aims puts what was reached beside what was aimed at.
func (m *measurements) aims(o *outage, g *growth) *table {
	t := &table{title: "Aims", header: []string{"", "aim", "reached"}}
	d, p := m.durable[64], m.passing[64]
	alone := median(m.alone, func(f float64) float64 { return f })
	t.add("durable / pass-through at 64 senders", "≥ 70%", ratio(d, p, rate))
	t.add("… counted until the last is delivered", "≥ 70%", ratio(d, p, whole))
	t.add("waiting at ¼ and at the end, 64 senders", "flat", number(median(d, backlog(0)))+" → "+number(median(d, backlog(3))))
	t.add("syncs per webhook at 64 senders", "< 0.25", m.syncs(64))
	t.add("syncs per webhook at one sender", "2", m.syncs(1))
	t.add("the courier's rate at 256 senders, of that alone", "≥ 50%", percent(median(m.durable[256], delivered)/alone))
	t.add("delivered meanwhile of what is acknowledged, 256 senders", "–", percent(median(m.durable[256], delivered)/median(m.durable[256], rate)))
	t.add("after the outage, all delivered within", "seconds", seconds(o.all))
	t.add("out of order / lost", "0 / 0", fmt.Sprintf("%d / %d", o.disorder, o.lost))
	t.add(fmt.Sprintf("memory of its own after %d and %d", g.after[0], g.after[1]), "flat",
		mebibytes(g.memory[0].anon)+" → "+mebibytes(g.memory[1].anon))
	return t
}
