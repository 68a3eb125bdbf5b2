package servers

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Whether servers and streams can be an inbox.

// misfitError says that the servers, or the streams that are there, can't be usher's inbox.
type misfitError struct {
	what   string
	faults []string
}

func (e *misfitError) Error() string { return e.what + ": " + strings.Join(e.faults, "; ") }

// oldest is the first version that knows all that is asked of it: a message can depend on
// what is last on another subject.
var oldest = []int{2, 11}

// checkVersion says whether a server is too old.
func checkVersion(name, version string) error {
	var have [2]int
	if n, _ := fmt.Sscanf(version, "%d.%d", &have[0], &have[1]); n == 2 && slices.Compare(have[:], oldest) < 0 {
		return &misfitError{"a server is too old", []string{fmt.Sprintf("%s runs NATS %s, and usher needs %d.%d or newer", name, version, oldest[0], oldest[1])}}
	}
	return nil
}

// The streams' metadata, so that another version recognises the format.
const (
	formatKey = "usher-format"
	format    = "5"
)

// misfits names what is wrong with a stream that somebody else has made.
func misfits(want jetstream.StreamConfig, c *jetstream.StreamConfig, replicas int) (faults []string) {
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, "stream "+want.Name+": "+fmt.Sprintf(format, args...))
		}
	}
	if c.Metadata[formatKey] != format {
		return []string{fmt.Sprintf("stream %s: it was not made by this version of usher (its metadata has %s=%q, and should have %q): deliver what waits in it with the version that made it, then delete it, or name another one with ?stream=NAME",
			want.Name, formatKey, c.Metadata[formatKey], format)}
	}
	check(slices.Contains(c.Subjects, want.Subjects[0]), "its subjects are %q, and should be %q", c.Subjects, want.Subjects[0])
	check(c.Storage == want.Storage, "its storage should be file")
	check(c.Retention == want.Retention, "its retention should be limits")
	check(c.Discard == want.Discard, "its discard policy should be %v", want.Discard)
	check(c.MaxBytes >= min(leastBytes, want.MaxBytes), "it has room for %d bytes: max_bytes should be at least %d", c.MaxBytes, leastBytes)
	check(c.MaxMsgs <= 0 || want.MaxMsgs > 0, "it has room for %d messages: there should be no max_msgs", c.MaxMsgs)
	check(c.MaxAge == 0 || want.MaxAge > 0, "it deletes messages after %v, also webhooks that wait: there should be no max_age", c.MaxAge)
	check(max(c.MaxMsgsPerSubject, 0) == want.MaxMsgsPerSubject, "it keeps %d messages per subject: max_msgs_per_subject should be %d", c.MaxMsgsPerSubject, want.MaxMsgsPerSubject)
	check(c.AllowRollup || !want.AllowRollup, "allow_rollup_hdrs should be on")
	check(!c.DenyDelete && !c.DenyPurge, "it denies deletes or purges: usher deletes what is finished")
	check(!c.AllowDirect, "allow_direct should be off: a server that is behind may not answer for the others")
	check(c.Mirror == nil && len(c.Sources) == 0, "it gets messages from another stream")
	check(!c.Sealed, "it is sealed")
	check(!c.NoAck, "no_ack should be off: usher waits until a message is acknowledged")
	check(c.MaxMsgSize <= 0, "it takes messages of %d bytes at most: there should be no max_msg_size", c.MaxMsgSize)
	check(c.PersistMode == jetstream.DefaultPersistMode, "its persist_mode is %v: it would acknowledge what is not on disk", c.PersistMode)
	check(c.SubjectTransform == nil, "there should be no subject_transform")
	check(replicas == 0 || c.Replicas == replicas, "it has %d replicas, and should have %d", c.Replicas, replicas)
	return faults
}

// majority reports whether the server that answered about a stream leads it, and has heard from most of
// the servers that keep a copy. A server that is alone still answers from what it has. What counts is
// which servers have a copy, not how many should: while that is being changed the group is another.
func majority(info *jetstream.StreamInfo) bool {
	c := info.Cluster
	if c == nil {
		return true
	}
	heard, all := 1, 1
	for _, peer := range c.Replicas {
		if peer.Pending { // it is to get a copy, and has no vote yet
			continue
		}
		if all++; !peer.Offline && peer.Active < silence {
			heard++
		}
	}
	return c.Leader != "" && heard > all/2
}
