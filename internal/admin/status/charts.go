package status

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"usher/internal/admin/metrics"
	"usher/internal/admin/page"
	"usher/internal/view"
)

// Charts returns the charts of the last hour: calls and errors, and how long calls took.
func (p *Port) Charts() []page.Chart {
	var starts []time.Time
	fine := page.Series{Class: "c-fine", Label: "calls"}
	failed := page.Series{Class: "c-failed", Label: "errors"}
	p50 := page.Series{Class: "c-p50", Label: "p50"}
	p99 := page.Series{Class: "c-p99", Label: "p99"}
	var renewed, replayed []int
	minutes := sinceFirst(p.Calls)
	tokens := p.Tokens[len(p.Tokens)-len(minutes):]
	var calls, wrong int
	var busiest float64
	var slowest time.Duration
	for i, m := range minutes {
		all, errors := m.Sum(metrics.CallsFine, metrics.CallsFailed), m.Counts[metrics.CallsFailed]
		// The current minute is not over yet.
		length := min(max(p.now.Sub(m.Start).Seconds(), 10), 60)
		rate, errorRate := float64(all)/length, float64(errors)/length
		starts = append(starts, m.Start)
		fine.Add(rate-errorRate, figure(rate))
		failed.Add(errorRate, strconv.Itoa(errors))
		p50.Add(milliseconds(m.P50), tookWords(m.P50))
		p99.Add(milliseconds(m.P99), tookWords(m.P99))
		p50.Total, p99.Total = tookWords(m.P50), tookWords(m.P99)
		renewed = append(renewed, tokens[i].Counts[metrics.TokensRenewed])
		replayed = append(replayed, m.Counts[metrics.CallsReplayed])
		calls, wrong = calls+all, wrong+errors
		busiest, slowest = max(busiest, rate), max(slowest, m.P99)
	}
	fine.Total, failed.Total = view.Count(calls), view.Count(wrong)
	rates := page.NewBars("calls-"+p.Name, "Calls per second",
		fmt.Sprintf("%s in the last hour, %s; at most %s per second.",
			view.Plural(calls, "call", "calls"), view.Plural(wrong, "error", "errors"), figure(busiest)),
		starts, []page.Series{fine, failed}, figure)
	rates.Mark("token renewed", "m-renewed", renewed)
	rates.Mark("401 replayed", "m-replayed", replayed)
	times := page.NewLines("latency-"+p.Name, "Time until the answer's last byte",
		fmt.Sprintf("The slowest minute of the last hour had a 99th percentile of %s.", tookWords(slowest)),
		starts, []page.Series{p50, p99}, func(ms float64) string {
			return tookWords(time.Duration(ms * float64(time.Millisecond)))
		})
	return []page.Chart{rates, times}
}

// GateChart returns the chart of the gate's decisions. It leaves out those that do not occur.
func (s *Status) GateChart() page.Chart {
	var starts []time.Time
	var series []page.Series
	minutes := sinceFirst(s.Gate.Decisions)
	for _, m := range minutes {
		starts = append(starts, m.Start)
	}
	notWebhooks := metrics.Sum(minutes, len(minutes), metrics.NoWebhooks, metrics.FailedQuestions)
	total := metrics.Sum(minutes, len(minutes)) - notWebhooks
	summary := ""
	for i, decision := range metrics.Decisions {
		n := metrics.Sum(minutes, len(minutes), i)
		if n == 0 {
			continue
		}
		one := page.Series{Class: "c-" + decision, Label: decision, Total: view.Count(n)}
		for _, m := range minutes {
			one.Add(float64(m.Counts[i]), strconv.Itoa(m.Counts[i]))
		}
		series = append(series, one)
		summary += fmt.Sprintf(", %s %s", view.Count(n), decision)
	}
	return page.NewBars("decisions", "Webhooks per minute",
		view.Plural(total, "webhook", "webhooks")+" in the last hour"+summary+".", starts, series, figure)
}

// sinceFirst leaves out the beginning of the hour if nothing happened then: a chart shows the last
// 10, 20, 30 or all minutes.
func sinceFirst(minutes []metrics.Minute) []metrics.Minute {
	first := slices.IndexFunc(minutes, func(m metrics.Minute) bool { return m.Sum() > 0 })
	for _, n := range []int{10, 20, 30} {
		if from := len(minutes) - n; from >= 0 && (first < 0 || first >= from) {
			return minutes[from:]
		}
	}
	return minutes
}

// figure writes a rate or a count with a readable number of digits.
func figure(v float64) string {
	if v >= 100 {
		return view.Count(int(v))
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}

// milliseconds returns a duration as the value of a chart. Zero means that there is none.
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
	return view.Span(d.Round(time.Millisecond / 100))
}
