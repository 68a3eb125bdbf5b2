package proxy

import (
	"bytes"
	"io"
	"mime"
	"net/http"
	"strconv"

	"usher/internal/guard"
)

// To a caller of HTTP/1.0, such as nginx with its defaults, the end of the connection is the end of an answer
// without a length. An answer that ends too early must not look complete. So usher reads it to its end first, and sends
// it with its length. If it is too long for that, or an event stream, usher sends it as it comes, and the connection
// ends with a reset unless all of it was sent.

// wholeLimit is the longest answer that usher reads to its end first.
const wholeLimit = 1 << 20

// addLength is ReverseProxy's ModifyResponse.
func addLength(resp *http.Response) error {
	if resp.Request.ProtoAtLeast(1, 1) || resp.ContentLength >= 0 || resp.Body == http.NoBody {
		return nil
	}
	// From now on: usher may be killed, too.
	guard.ResetOnClose(resp.Request, true)
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind == "text/event-stream" {
		return nil
	}
	beginning, err := io.ReadAll(io.LimitReader(resp.Body, wholeLimit+1))
	if err != nil {
		return err // ReverseProxy closes the answer
	}
	if len(beginning) <= wholeLimit {
		resp.ContentLength, resp.Trailer = int64(len(beginning)), nil
		resp.Header.Set("Content-Length", strconv.Itoa(len(beginning)))
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(beginning), resp.Body), resp.Body}
	return nil
}

// endNormally is called after a complete answer.
func endNormally(w http.ResponseWriter, r *http.Request) {
	if !r.ProtoAtLeast(1, 1) && http.NewResponseController(w).Flush() == nil {
		guard.ResetOnClose(r, false)
	}
}
