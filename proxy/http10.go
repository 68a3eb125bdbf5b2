package proxy

import (
	"io"
	"mime"
	"net/http"
	"strconv"

	"usher/internal/guard"
)

// Answers without a length to callers of HTTP/1.0, such as nginx with its defaults. To these callers
// the end of the connection is the end of the answer. An answer that ends too early must not look
// complete. So usher reads the answer to its end first, and sends it with its length. If it is too
// long for that, or an event stream, usher sends it as it comes, and resets the connection if it ends
// too early.

// wholeLimit is the longest answer that usher reads to its end first.
const wholeLimit = 1 << 20

// keptBody is the body of an answer whose beginning, or all of it, is in memory.
type keptBody struct {
	io.Reader
	kept payload
	rest io.Closer
}

func (b *keptBody) Close() error {
	b.kept.release()
	return b.rest.Close()
}

// addLength is ReverseProxy's ModifyResponse. It adds a length to an answer for a caller of HTTP/1.0.
func (h *Handler) addLength(resp *http.Response) error {
	if resp.Request.ProtoAtLeast(1, 1) || resp.ContentLength >= 0 || resp.Body == http.NoBody {
		return nil
	}
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind == "text/event-stream" {
		return nil
	}
	body := &keptBody{rest: resp.Body}
	if err := body.kept.read(resp.Body, -1, wholeLimit, h.cfg.AnswerMemory); err != nil {
		body.kept.release()
		return err // ReverseProxy closes the answer
	}
	resp.Body = body
	if body.Reader = body.kept.stream; body.Reader == nil {
		body.Reader = body.kept.reader()
		resp.ContentLength, resp.Trailer = body.kept.length, nil
		resp.Header.Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	return nil
}

// answerBegins is called with the header of an answer, right before it is sent. If the answer ends
// with the connection, the connection ends with a reset from now on, also if net/http closes it, or
// the kernel because usher was killed.
func (o *outcome) answerBegins(h http.Header) {
	if o.toClose = !o.request.ProtoAtLeast(1, 1) && h["Content-Length"] == nil; o.toClose {
		guard.ResetOnClose(o.request, true)
	}
}

// answerComplete is called after the end of a complete answer. The connection may end normally once
// net/http has sent what it still holds of the answer.
func (o *outcome) answerComplete() {
	if o.toClose && http.NewResponseController(o.ResponseWriter).Flush() == nil {
		guard.ResetOnClose(o.request, false)
	}
}
