package inbox

import "time"

const (
	// pace is the least time between two transactions while several senders wait for
	// each: on a fast disk there would else be hardly any company to share one.
	pace = 3 * time.Millisecond
	// patience is how long a transaction waits for a courier that is behind, and
	// patienceStep how soon the courier must have got something done for that.
	patience     = 25 * time.Millisecond
	patienceStep = 5 * time.Millisecond
)

// pacer delays the writer's transactions a little when there are many senders. Who
// sends alone never waits.
type pacer struct {
	// progress is the courier's: whether deliveries wait for nothing but a place, and
	// how many have ended so far.
	progress func() (behind bool, done int)

	company bool      // more than one waited for the last transaction
	began   time.Time // when that was
}

// wait gives the next transaction time for company, and the courier time to catch up:
// many senders must not starve it. One that gets nothing done waits for a slow
// receiver, and then waiting for it would help nobody.
func (p *pacer) wait() {
	if !p.company {
		return
	}
	time.Sleep(time.Until(p.began.Add(pace)))
	for end := time.Now().Add(patience); time.Now().Before(end); {
		behind, before := p.progress()
		if !behind {
			return
		}
		time.Sleep(patienceStep)
		if _, done := p.progress(); done == before {
			return
		}
	}
}

// begin notes the transaction that follows.
func (p *pacer) begin(batch []*op) {
	waiting := 0
	for _, o := range batch {
		if o.done != nil {
			waiting++
		}
	}
	p.company, p.began = waiting > 1, time.Now()
}
