package snapshot

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"usher/internal/content"
)

// ChangeDigest returns a digest of what a webhook, which content.Parse has read, says in payload.change. It is the same
// for the same content, whatever the order of names and of list entries, and however the JSON is spelled. Nil: the
// webhook has no change.
func ChangeDigest(value any) []byte {
	change := content.Member(content.Member(value, "payload"), "change")
	if change == nil {
		return nil
	}
	sum := sha256.Sum256(appendCanonical(nil, change))
	return sum[:16]
}

func appendCanonical(b []byte, value any) []byte {
	switch v := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			b = append(strconv.AppendQuote(append(b, '{'), name), ':')
			b = append(appendCanonical(b, v[name]), '}')
		}
		return b
	case []any:
		entries := make([][]byte, len(v))
		for n, entry := range v { // digests have one length, so a list of lists does not grow with its depth
			sum := sha256.Sum256(appendCanonical(nil, entry))
			entries[n] = sum[:]
		}
		slices.SortFunc(entries, bytes.Compare)
		return append(append(append(b, '['), bytes.Join(entries, nil)...), ']')
	case string:
		return strconv.AppendQuote(b, v)
	default: // a number as it is written, true, false or null
		return fmt.Append(b, v)
	}
}
