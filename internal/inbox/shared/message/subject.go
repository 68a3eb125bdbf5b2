package message

import (
	"fmt"
	"strconv"
	"strings"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// Parts is how many parts the lanes fall into: the first letter of the tenant's name in
// subjects, a hexadecimal digit, says into which. Tests that have no time may have fewer of
// them delivered.
const Parts = 16

// Subjects names where messages are.
type Subjects struct {
	Prefix  string // of what waits
	History string // of what is finished
	Live    string // of what replicas tell each other, and nobody keeps
	Parts   int    // into which the lanes fall
}

// PlaceOf names a lane in subjects, where not every letter may stand: the tenant, then
// the rest.
func PlaceOf(lane webhookgate.Lane) string {
	key := record.LaneKey(lane)
	return fmt.Sprintf("%x.%x", key[:16], key[16:])
}

// PlacesOf has a star for the rest: all lanes of a tenant.
func PlacesOf(tenant string) string {
	token, _, _ := strings.Cut(PlaceOf(webhookgate.Lane{Tenant: tenant}), ".")
	return token + ".*"
}

// PartOf is the part of a place, or of a subject that the prefix was cut off.
func (s *Subjects) PartOf(place string) int {
	n, err := strconv.ParseUint(place[:1], 16, 8)
	if err != nil {
		return 0
	}
	return int(n) % s.Parts
}

// Part is a subject of a part.
func (s *Subjects) Part(n int, rest string) string { return fmt.Sprintf("%s%x.%s", s.Prefix, n, rest) }

// Lane is where the messages of a lane are.
func (s *Subjects) Lane(place string) string { return s.Part(s.PartOf(place), "in."+place) }

// State is where it is said how a webhook stands.
func (s *Subjects) State(place string, id uint64) string {
	return s.Part(s.PartOf(place), "state."+place+"."+strconv.FormatUint(id, 10))
}

// States is where it is said how any webhook of a lane stands.
func (s *Subjects) States(place string) string { return s.Part(s.PartOf(place), "state."+place+".*") }

// Past is where a finished webhook is.
func (s *Subjects) Past(place string, id uint64) string {
	return s.History + place + "." + strconv.FormatUint(id, 10)
}

// ErasedUpTo is where the history notes up to which webhook a lane was erased. Whatever is written there of the lane
// expects that note to be as it was, so that what is late is refused.
func (s *Subjects) ErasedUpTo(place string) string { return s.History + place + ".erased" }

// IDs are those that subjects end with. Subjects that end otherwise do not count.
func IDs(subjects map[string]uint64) (ids []uint64) {
	for subject := range subjects {
		if id, err := strconv.ParseUint(subject[strings.LastIndexByte(subject, '.')+1:], 10, 64); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// Split takes a subject of a part apart: its kind, the place, and the id where it has one. All are
// empty if usher writes no such subject.
func (s *Subjects) Split(subject string) (kind, place string, id uint64) {
	words := strings.Split(strings.TrimPrefix(subject, s.Prefix), ".")
	if len(words) == 2 && (words[1] == "lease" || words[1] == "claim") {
		return words[1], "", 0
	}
	if len(words) < 4 {
		return "", "", 0
	}
	kind, place = words[1], words[2]+"."+words[3]
	written := s.Lane(place)
	if kind != "in" {
		id, _ = strconv.ParseUint(words[len(words)-1], 10, 64)
		written = s.State(place, id)
	}
	if subject != written {
		return "", "", 0
	}
	return kind, place, id
}
