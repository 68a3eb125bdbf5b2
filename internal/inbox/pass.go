package inbox

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"usher/internal/content"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/snapshot"
	"usher/webhookgate"
)

// A Pass is one over the lines of a list. The first one of a run compares them. A second one takes in those
// lines that the person has chosen.
type Pass struct {
	Run     string             `json:"run,omitempty"`
	Mode    lane.ReconcileMode `json:"mode,omitempty"`
	Failed  string             `json:"failed,omitempty"`  // why the list cannot be trusted: then nothing is changed
	Partial bool               `json:"partial,omitempty"` // the list is not meant to be whole
	Rest    bool               `json:"rest,omitempty"`    // of one that takes in: these are all that differ
}

const (
	// This many lines, or about so many bytes, go into one transaction: webhooks wait that long.
	batchLines = 50
	batchBytes = 1 << 20
	// unlistedPage is how many tenants are read at once.
	unlistedPage = 500
)

// A passing is a pass that is under way. It lives as long as the request that brings the list. After an error it does
// nothing any more.
type passing struct {
	s *queue
	Pass
	run   runID
	tell  func(some []lane.Compared, seen int) error
	batch []*lane.ListLine // each tenant once
	size  int
	err   error

	seen    map[[16]byte][16]byte // every tenant of the list so far, with a digest of its features
	alike   []lane.Compared       // new tenants whose code is known on another platform
	found   lane.Counts
	untaken string // a tenant whose platform no receiver takes
}

// Reconcile makes one pass over a list, and returns the run as it is then. next returns one line after the other,
// and io.EOF in the end. Empty lines only count. tell gets what came of those lines that are not equal, and how many
// tenants the pass has seen so far.
func (s *queue) Reconcile(
	ctx context.Context, pass Pass, next func() ([]byte, error), tell func(some []lane.Compared, seen int) error,
) (*Run, error) {
	p := &passing{s: s, Pass: pass, tell: tell, seen: make(map[[16]byte][16]byte), found: make(lane.Counts)}
	p.run, p.err = parseRun(pass.Run)
	for number := 1; p.err == nil; number++ {
		line, err := next()
		if errors.Is(err, io.EOF) {
			return p.end(ctx)
		}
		if p.err = err; err == nil && len(line) > 0 {
			o := s.readLine(line)
			if o.Draft.Line = number; !p.enter(o) {
				p.add(o, len(line))
			}
		}
	}
	return nil, p.err
}

// add adds a line to the batch.
func (p *passing) add(o *lane.ListLine, size int) {
	if len(p.batch) >= batchLines || p.size >= batchBytes || o.Contradicts {
		p.flush()
	}
	p.batch, p.size = append(p.batch, o), p.size+size
}

// flush has the batch decided about, counts, and tells. After a line that cannot be taken in, for example because the
// inbox is full, the others stay as they are.
func (p *passing) flush() {
	var all, some []lane.Compared
	mode := p.Mode
	if p.Failed != "" {
		mode = lane.ToCompare
	}
	if p.err == nil {
		all, p.err = p.s.decideBatch(p.run, p.batch, mode)
	}
	if p.err != nil {
		return
	}
	for n, c := range all {
		if c.Err != nil {
			p.Failed = "not all were taken in: " + c.Err.Error()
		}
		if p.count(p.batch[n], &c) {
			some = append(some, c)
		}
	}
	p.batch, p.size = nil, 0
	p.err = p.tell(some, len(p.seen))
}

// end finds what only the whole list says, and notes what came of the pass. A list that failed says nothing of the
// tenants that it does not have.
func (p *passing) end(ctx context.Context) (*Run, error) {
	p.flush()
	compares := !p.Mode.Applies()
	if compares && p.err == nil {
		p.Failed = cmp.Or(p.Failed, p.failure())
	}
	whole := compares && p.Failed == "" && !p.Partial
	if whole {
		p.addUnlisted(ctx)
	}
	settled := p.Failed == "" && p.found.Open() == 0 && (whole || p.Rest)
	if p.err == nil && (whole || settled) {
		p.err = p.s.endRun(p.run, settled)
	}
	return &Run{ID: p.Run, Found: p.found, Failed: p.Failed}, p.err
}

// addUnlisted tells of the tenants that may use something, and that the list does not have. Nothing came for them since
// the run began.
func (p *passing) addUnlisted(ctx context.Context) {
	for last, read := new(lane.Compared), unlistedPage; read == unlistedPage && p.err == nil; {
		var page []lane.Compared
		p.err = p.s.read(ctx, func(tx engine.Tx) error {
			tx.Queue("known_before", func(r engine.Row) error {
				c := lane.Compared{Result: lane.Unlisted}
				var features string
				err := r.Scan(&c.Tenant, &c.Platform, &features)
				last = &c
				read++
				if may, _ := snapshot.Decode([]byte(features)); len(may.Features) > 0 && !p.has(c.Platform, c.Tenant) {
					page = append(page, c)
				}
				return err
			}, p.run.at, last.Tenant, last.Platform, int64(unlistedPage))
			read = 0
			return tx.Send()
		})
		if p.found[lane.Unlisted] += len(page); p.err == nil {
			p.err = p.tell(page, len(p.seen))
		}
	}
}

func keyOf(platform, tenant string) [16]byte {
	sum := sha256.Sum256([]byte(platform + "\x00" + tenant))
	return [16]byte(sum[:16])
}

func (p *passing) has(platform, tenant string) bool {
	_, listed := p.seen[keyOf(platform, tenant)]
	return listed
}

// enter enters a line, before it is judged. It says whether a line before it has said the same, so that nothing
// is to be done with this one.
func (p *passing) enter(o *lane.ListLine) (repeats bool) {
	if o.Draft.Result == lane.Faulty {
		return false
	}
	key, says := keyOf(o.Draft.Platform, o.Draft.Tenant), lane.FeaturesDigest(o.Says)
	before, twice := p.seen[key]
	if o.Contradicts = twice; !twice {
		p.seen[key] = says
	}
	return twice && (before == says || o.Draft.Result == lane.PassedOver)
}

// count counts a line, once it was judged, and says whether to tell of it.
func (p *passing) count(o *lane.ListLine, c *lane.Compared) (tell bool) {
	switch {
	case o.Contradicts && c.Result == lane.Left:
		return false
	case o.Contradicts:
		c.Result = lane.Faulty
		c.Fault = fmt.Sprintf("the tenant %s was printed before, with other features", ShowTenant(c.Platform, c.Tenant))
	case c.Result == lane.PassedOver:
		p.untaken = ShowTenant(c.Platform, c.Tenant)
	case c.Applied:
		p.found[lane.Applied]++
	}
	if p.found[c.Result]++; c.Result == lane.NewTenant && len(c.Elsewhere) > 0 {
		p.alike = append(p.alike, *c)
	}
	return c.Result != lane.Equal && c.Result != lane.PassedOver
}

// failure says why the list cannot be trusted; empty: it can.
func (p *passing) failure() string {
	switch faulty := p.found[lane.Faulty]; {
	case faulty == 1:
		return "1 line cannot be compared"
	case faulty > 1:
		return fmt.Sprint(faulty, " lines cannot be compared")
	case len(p.seen) == 0:
		return "the command printed nothing"
	case p.untaken != "" && p.found[lane.PassedOver] == len(p.seen): // rather a list of another platform
		return "nothing was compared: no receiver takes the platforms in the list, such as that of " + p.untaken + ". " +
			"Are they right?"
	}
	for _, c := range p.alike {
		for _, platform := range c.Elsewhere {
			if !p.has(platform, c.Tenant) {
				return fmt.Sprintf("%s is new, and usher knows %s, which the command did not print: is the platform right?",
					ShowTenant(c.Platform, c.Tenant), ShowTenant(platform, c.Tenant))
			}
		}
	}
	return ""
}

// MaxLine is the length of the longest line.
func (s *store) MaxLine() int { return int(cmp.Or(s.cfg.MaxBody, 16<<20)) }

// readLine reads a line: a webhook's payload, or a whole webhook.
func (s *store) readLine(line []byte) *lane.ListLine {
	faulty := func(fault string) *lane.ListLine {
		return &lane.ListLine{Draft: lane.Compared{Result: lane.Faulty, Fault: fault}}
	}
	body := webhookOf(line)
	if longest := s.MaxLine(); len(body) > longest {
		return faulty(fmt.Sprintf("is larger than %d bytes (USHER_WEBHOOK_MAX_BODY)", longest))
	}
	header := http.Header{"Content-Type": {"application/json"}, sourceHeader: {FromReconcile}}
	w, faults := webhookgate.ReadSnapshot(s.cfg.Content, header, body, s.cfg.Receivers)
	if len(faults) == 0 && w.State.Features == nil {
		faults = []content.Fault{{Path: "/payload/change/features", Message: "cannot be read"}}
	}
	if len(faults) > 0 {
		return faulty(content.Summary(faults))
	}
	o := &lane.ListLine{Incoming: arriving(w)}
	o.Source = FromReconcile
	o.Says, _ = snapshot.Decode(w.State.Features) // they have just been encoded
	o.Draft = lane.Compared{Platform: o.Platform, Tenant: o.Tenant}
	if o.To == nil && !s.cfg.StoreUnclaimed {
		o.Draft.Result = lane.PassedOver
	}
	return o
}

// webhookOf returns the webhook that a line is, or is the payload of. ReadSnapshot finds what is wrong with it.
func webhookOf(line []byte) []byte {
	const kind = `{"type":"` + content.TenantProvisioningChange + `",`
	var members map[string]json.RawMessage
	if json.Unmarshal(line, &members) != nil || members["type"] != nil && members["payload"] != nil {
		return line
	}
	if members["payload"] != nil {
		return append([]byte(kind), line[1:]...)
	}
	return fmt.Appendf(nil, `%s"payload":%s}`, kind, line)
}
