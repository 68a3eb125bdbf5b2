package lane

// GiveToReceiver says what to do about a platform that no receiver takes.
const GiveToReceiver = "Give the platform to a receiver (USHER_WEBHOOK_RECEIVERS_n_PLATFORMS), " +
	"or set USHER_WEBHOOK_FORWARD_URL, then restart usher"

// Denied says why something that a person asked for is not possible as things stand. The admin port answers it with
// 409.
type Denied string

func (d Denied) Error() string { return string(d) }

const (
	// ErrFinished says that a webhook can't be discarded because it is only history.
	ErrFinished Denied = "only waiting, parked or invalid webhooks can be discarded"
	// ErrStored says that a webhook can't be sent again: it was stored, and still no receiver takes its platform.
	ErrStored Denied = "no receiver takes webhooks of its platform. " + GiveToReceiver
	// ErrMeanwhile says that something has come for a tenant since somebody asked to erase it.
	ErrMeanwhile Denied = "something arrived for this tenant meanwhile, so nothing was erased; try again"
	// ErrBusy says that a webhook is still being delivered.
	ErrBusy Denied = "it is being delivered right now; try again"
	// ErrInvalid says that a webhook was never taken in, so that it can't be sent again.
	ErrInvalid Denied = "it is invalid: use 'usher inbox accept ID'"
	// ErrNotInvalid says that only invalid webhooks can be accepted.
	ErrNotInvalid Denied = "somebody has dealt with it, its tenant has a newer snapshot, or it was not invalid: " +
		"see 'usher inbox show ID'"
	// ErrDamaged says that the stored content of a webhook is not the content that was taken in.
	ErrDamaged Denied = "the stored webhook is damaged: its content does not fit its checksum"
)
