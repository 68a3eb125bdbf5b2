package status

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"usher/internal/admin/metrics"
	"usher/internal/admin/page"
)

// Charts draw a port's last hour: calls and errors, and how long they took.
func (p *Port) Charts() []page.Chart {
	var starts []time.Time
	fine := page.Series{Class: "c-fine", Label: "calls"}
	failed := page.Series{Class: "c-failed", Label: "errors"}
	p50 := page.Series{Class: "c-p50", Label: "p50"}
	p99 := page.Series{Class: "c-p99", Label: "p99"}
	var renewed, replayed []int
	calls, errors, busiest, slowest := 0, 0, 0.0, time.Duration(0)
	for _, m := range sinceFirst(p.Minutes, func(m PortMinute) bool { return m.Calls+m.Renewed+m.Replayed > 0 }) {
		// Of the minute that is under way, so much is over.
		length := min(max(p.now.Sub(m.Start).Seconds(), 10), 60)
		rate, errorRate := float64(m.Calls)/length, float64(m.Failed)/length
		starts = append(starts, m.Start)
		fine.Add(rate-errorRate, figure(rate))
		failed.Add(errorRate, strconv.Itoa(m.Failed))
		p50.Add(milliseconds(m.P50), tookWords(m.P50))
		p99.Add(milliseconds(m.P99), tookWords(m.P99))
		p50.Total, p99.Total = tookWords(m.P50), tookWords(m.P99)
		renewed, replayed = append(renewed, m.Renewed), append(replayed, m.Replayed)
		calls, errors = calls+m.Calls, errors+m.Failed
		busiest, slowest = max(busiest, rate), max(slowest, m.P99)
	}
	fine.Total, failed.Total = page.Count(calls), page.Count(errors)
	rates := page.NewBars("calls-"+p.Name, "Calls per second",
		fmt.Sprintf("%s in the last hour, %s; at most %s per second.", page.Plural(calls, "call", "calls"), page.Plural(errors, "error", "errors"), figure(busiest)),
		starts, []page.Series{fine, failed}, figure)
	rates.Mark("token renewed", "m-renewed", renewed)
	rates.Mark("401 replayed", "m-replayed", replayed)
	times := page.NewLines("latency-"+p.Name, "Time until the answer's last byte",
		fmt.Sprintf("The slowest minute of the last hour had a 99th percentile of %s.", tookWords(slowest)),
		starts, []page.Series{p50, p99}, func(ms float64) string { return tookWords(time.Duration(ms * float64(time.Millisecond))) })
	return []page.Chart{rates, times}
}

// GateChart stacks the gate's decisions. What it accepts is queued where there is an inbox, else forwarded; with
// an inbox only what asks a question is forwarded.
func (s *Status) GateChart() page.Chart {
	var starts []time.Time
	var series []page.Series
	minutes := sinceFirst(s.Gate.Decisions, func(m metrics.Minute) bool { return m.Sum() > 0 })
	for _, m := range minutes {
		starts = append(starts, m.Start)
	}
	total, summary := metrics.Sum(minutes, len(minutes)), ""
	for i, decision := range metrics.Decisions {
		n := metrics.Sum(minutes, len(minutes), i)
		if n == 0 && (decision == "forwarded" && s.Inbox != nil || decision == "queued" && s.Inbox == nil) {
			continue
		}
		one := page.Series{Class: "c-" + decision, Label: decision, Total: page.Count(n)}
		for _, m := range minutes {
			one.Add(float64(m.Counts[i]), strconv.Itoa(m.Counts[i]))
		}
		series = append(series, one)
		if n > 0 {
			summary += fmt.Sprintf(", %s %s", page.Count(n), decision)
		}
	}
	return page.NewBars("decisions", "Webhooks per minute",
		page.Plural(total, "webhook", "webhooks")+" in the last hour"+summary+".", starts, series, figure)
}

// sinceFirst leaves out minutes at the beginning in which nothing happened.
func sinceFirst[M any](minutes []M, busy func(M) bool) []M {
	silent := slices.IndexFunc(minutes, busy)
	if silent < 0 {
		silent = len(minutes)
	}
	return minutes[len(minutes)-page.Recent(len(minutes), silent):]
}

// figure writes a rate, or another figure of any size.
func figure(v float64) string {
	if v >= 100 {
		return page.Count(int(v))
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}

// milliseconds is a duration as a figure; NaN where there is none.
func milliseconds(d time.Duration) float64 {
	if d == 0 {
		return math.NaN()
	}
	return float64(d) / float64(time.Millisecond)
}

func tookWords(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return page.Span(d.Round(time.Millisecond / 100))
}
