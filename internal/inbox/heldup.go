package inbox

import "usher/internal/inbox/courier"

// What the courier knows of the moment; see the package courier.
type (
	HeldUp        = courier.HeldUp
	ReceiverStats = courier.ReceiverStats
	Figures       = courier.Figures
)

// HeldUp returns the tenants whose webhooks wait behind one that was tried in vain; of those that
// this replica delivers.
func (i *Inbox) HeldUp() []HeldUp { return i.courier.HeldUp() }
