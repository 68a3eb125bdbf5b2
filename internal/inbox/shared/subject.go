package shared

import (
	"fmt"
	"strconv"
	"strings"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// parts is how many parts the lanes fall into: the first letter of the tenant's name in
// subjects, a hexadecimal digit, says into which. Tests that have no time may have fewer of
// them delivered.
const parts = 16

func (s *Store) partOf(place string) int {
	n, err := strconv.ParseUint(place[:1], 16, 8)
	if err != nil {
		return 0
	}
	return int(n) % s.parts
}

// placeOf names a lane in subjects, where not every letter may stand: the tenant, then
// the rest.
func placeOf(lane webhookgate.Lane) string {
	key := record.LaneKey(lane)
	return fmt.Sprintf("%x.%x", key[:16], key[16:])
}

func (s *Store) part(n int, rest string) string { return fmt.Sprintf("%s%x.%s", s.prefix, n, rest) }

func (s *Store) subject(kind, place string) string {
	return s.part(s.partOf(place), kind+"."+place)
}

func (s *Store) idSubject(kind, place string, id uint64) string {
	return s.subject(kind, place) + "." + strconv.FormatUint(id, 10)
}

func (s *Store) historySubject(place string, id uint64) string {
	return s.historyPrefix + place + "." + strconv.FormatUint(id, 10)
}

// split takes a subject of a part apart: its kind, the place, and the id where it has one. All are
// empty if usher writes no such subject.
func (s *Store) split(subject string) (kind, place string, id uint64) {
	words := strings.Split(strings.TrimPrefix(subject, s.prefix), ".")
	if len(words) == 2 && (words[1] == "lease" || words[1] == "claim") {
		return words[1], "", 0
	}
	if len(words) < 4 {
		return "", "", 0
	}
	kind, place = words[1], words[2]+"."+words[3]
	written := s.subject(kind, place)
	if kind != "in" {
		id, _ = strconv.ParseUint(words[len(words)-1], 10, 64)
		written = s.idSubject(kind, place, id)
	}
	if subject != written {
		return "", "", 0
	}
	return kind, place, id
}
