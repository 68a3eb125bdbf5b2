package metrics

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// What people should know of questions that got no answer, until one is answered or for an hour.
func TestQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New("1", "c").Gate(nil)
		want := func(count int, since time.Duration, why string) {
			t.Helper()
			q := g.Questions()
			got := fmt.Sprint(q.Count, " ", q.Why)
			if got != fmt.Sprint(count, " ", why) || count > 0 && time.Since(q.Since) != since {
				t.Errorf("%s since %v", got, time.Since(q.Since))
			}
		}
		want(0, 0, "")
		g.QuestionFailed("failed", "no answer")
		time.Sleep(time.Minute)
		g.QuestionFailed("rejected", "no receiver")
		want(2, time.Minute, "no receiver")
		if n := Sum(g.Hour(), 60, FailedQuestions); n != 1 {
			t.Errorf("%d count as webhooks that failed", n)
		}
		time.Sleep(time.Hour)
		g.QuestionFailed("failed", "no answer")
		want(1, 0, "no answer")
		g.QuestionAnswered()
		want(0, 0, "")
	})
}
