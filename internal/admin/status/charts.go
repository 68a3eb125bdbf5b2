package status

import (
	"fmt"
	"math"
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
	for _, m := range sinceFirst(p.Minutes, func(m PortMinute) bool { return m.Calls+m.Renewed+m.Replayed == 0 }) {
		// Of the minute that is under way, so much is over.
		length := min(max(p.now.Sub(m.Start).Seconds(), 10), 60)
		rate := float64(m.Calls) / length
		errorRate := float64(m.Failed) / length
		starts = append(starts, m.Start)
		fine.Values = append(fine.Values, rate-errorRate)
		fine.Cells = append(fine.Cells, figure(rate))
		failed.Values = append(failed.Values, errorRate)
		failed.Cells = append(failed.Cells, strconv.Itoa(m.Failed))
		p50.Values, p50.Cells = append(p50.Values, milliseconds(m.P50)), append(p50.Cells, tookWords(m.P50))
		p99.Values, p99.Cells = append(p99.Values, milliseconds(m.P99)), append(p99.Cells, tookWords(m.P99))
		renewed, replayed = append(renewed, m.Renewed), append(replayed, m.Replayed)
		calls, errors = calls+m.Calls, errors+m.Failed
		busiest, slowest = max(busiest, rate), max(slowest, m.P99)
	}
	fine.Total, failed.Total = page.Count(calls), page.Count(errors)
	if n := len(p50.Cells); n > 0 {
		p50.Total, p99.Total = p50.Cells[n-1], p99.Cells[n-1]
	}
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
	total, summary := 0, ""
	minutes := sinceFirst(s.Gate.Minutes, func(m GateMinute) bool {
		for _, n := range m.Decisions {
			if n > 0 {
				return false
			}
		}
		return true
	})
	for _, m := range minutes {
		starts = append(starts, m.Start)
	}
	for _, decision := range metrics.Decisions {
		one := page.Series{Class: "c-" + decision, Label: decision}
		n := 0
		for _, m := range minutes {
			one.Values = append(one.Values, float64(m.Decisions[decision]))
			one.Cells = append(one.Cells, strconv.Itoa(m.Decisions[decision]))
			n += m.Decisions[decision]
		}
		if n == 0 && (decision == "forwarded" && s.Inbox != nil || decision == "queued" && s.Inbox == nil) {
			continue
		}
		one.Total = page.Count(n)
		series = append(series, one)
		total += n
		if n > 0 {
			summary += fmt.Sprintf(", %s %s", page.Count(n), decision)
		}
	}
	return page.NewBars("decisions", "Webhooks per minute",
		page.Plural(total, "webhook", "webhooks")+" in the last hour"+summary+".", starts, series,
		figure)
}

// sinceFirst leaves out minutes at the beginning in which nothing happened.
func sinceFirst[M any](minutes []M, silent func(M) bool) []M {
	n := 0
	for n < len(minutes) && silent(minutes[n]) {
		n++
	}
	return minutes[len(minutes)-page.Recent(len(minutes), n):]
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
