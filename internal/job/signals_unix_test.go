//go:build unix

package job

import (
	"io"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// The system makes one signal of several that come at once. So the witness may report more of them than
// usher has got, and what is left must not hide a later signal that is for usher alone.
func TestOldReportIsNotOfALaterSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &witness{reports: make(chan report, 16)}
		from, to := io.Pipe()
		go w.listen(from)
		to.Write([]byte{byte(syscall.SIGINT)})
		to.Write([]byte{byte(syscall.SIGINT)})
		if !w.sawSignal(syscall.SIGINT) {
			t.Error("Ctrl-C was not noticed")
		}
		time.Sleep(time.Minute)
		if w.sawSignal(syscall.SIGINT) {
			t.Error("a signal to usher alone was taken for the Ctrl-C of a minute ago")
		}
		to.Close()
	})
}
