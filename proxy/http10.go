package proxy

import (
	"io"
	"mime"
	"net/http"
	"strconv"

	"usher/internal/guard"
)

// A caller of HTTP/1.0 takes the end of the connection for the end of an answer that has no length.
// nginx speaks HTTP/1.0 to its upstreams by default. An answer that ends too early must not look
// complete, so usher reads it to its end first, and sends its length. If it is too long for that, or
// an event stream, usher sends it as it comes, and resets the connection if it ends too early.

// wholeLimit is the longest answer that is read to its end first.
const wholeLimit = 1 << 20

// answerError says that the service's answer ended too early.
type answerError struct{ error }

func (e *answerError) Unwrap() error { return e.error }

// keptBody is an answer, or its beginning, in memory.
type keptBody struct {
	io.Reader
	kept payload
	rest io.Closer
}

func (b *keptBody) Close() error {
	b.kept.release()
	return b.rest.Close()
}

// complete is ReverseProxy's ModifyResponse. It gives an answer for a caller of HTTP/1.0 a length.
func (h *Handler) complete(resp *http.Response) error {
	if resp.Request.ProtoAtLeast(1, 1) || resp.ContentLength >= 0 || resp.Body == http.NoBody {
		return nil
	}
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind == "text/event-stream" {
		return nil
	}
	body := &keptBody{rest: resp.Body}
	if err := body.kept.read(resp.Body, -1, wholeLimit, h.cfg.AnswerMemory); err != nil {
		body.kept.release()
		return &answerError{err} // ReverseProxy closes the answer
	}
	resp.Body = body
	if body.Reader = body.kept.stream; body.Reader == nil {
		body.Reader = body.kept.reader()
		resp.ContentLength, resp.Trailer = body.kept.length, nil
		resp.Header.Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	return nil
}

// begin is called with the header of an answer, right before it is sent. From then on the connection
// ends with a reset, also if the server or the kernel closes it.
func (o *outcome) begin(h http.Header) {
	if o.toClose = !o.request.ProtoAtLeast(1, 1) && h["Content-Length"] == nil; o.toClose {
		guard.ResetOnClose(o.request, true)
	}
}

// end is called at the end of a complete answer.
func (o *outcome) end() {
	// What net/http still holds of the answer must leave before the connection may end normally.
	if o.toClose && http.NewResponseController(o.ResponseWriter).Flush() == nil {
		guard.ResetOnClose(o.request, false)
	}
}
