// Package page draws the admin port's pages: templates, charts, and words for times
// and numbers. What they show is put together in package admin; nothing here asks
// anybody for anything.
//
// There is no build step and nothing from elsewhere: the pages, one style sheet and
// one small script are embedded. Without the script all can be read and done; with it
// the parts of a page that are marked data-live follow what happens.
package page

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"usher/internal/inbox/store"
	"usher/internal/snapshot"
)

//go:embed html static
var files embed.FS

// Shell is a page, and what surrounds it.
type Shell struct {
	Name     string // of its template
	Status   int    // 200 unless set
	Title    string
	At       string // which of the main pages it belongs to: overview, webhooks, tenants or actions
	Version  string
	Live     bool // it follows what happens
	Webhooks bool // there can be some: their pages are linked
	Tenants  bool // they can be listed, and what people did
	Looks    bool // the visitor may look, but not act: see mayAct
	Notice   string
	Paused   []store.Pause
	Body     any
}

// names of the pages; each is the layout with its own main part.
var names = []string{"overview", "webhooks", "webhook", "tenants", "tenant", "actions", "confirm", "failure"}

// templates are parsed when somebody looks: most who start usher do not. In those for visitors who
// may only look mayAct is false: whatever acts stands in {{if mayAct}}.
var (
	templates = sync.OnceValue(func() map[string]*template.Template { return parse(true) })
	lookers   = sync.OnceValue(func() map[string]*template.Template { return parse(false) })
)

func parse(mayAct bool) map[string]*template.Template {
	may := template.FuncMap{"mayAct": func() bool { return mayAct }}
	base := template.Must(template.New("layout.html").Funcs(funcs).Funcs(may).ParseFS(files, "html/layout.html", "html/parts.html"))
	all := make(map[string]*template.Template)
	for _, name := range names {
		all[name] = template.Must(template.Must(base.Clone()).ParseFS(files, "html/"+name+".html"))
	}
	return all
}

// Policy lets a page load what this port serves, and nothing else. Scripts and styles
// come as files: what others wrote into a payload can't become one.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// Write renders a page whole, and only then sends it: one that fails half way is no page.
func Write(w http.ResponseWriter, shell *Shell) error {
	pages := templates
	if shell.Looks {
		pages = lookers
	}
	var out bytes.Buffer
	if err := pages()[shell.Name].Execute(&out, shell); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(cmp.Or(shell.Status, http.StatusOK))
	_, _ = w.Write(out.Bytes()) // the reader may be gone; nothing to do about it
	return nil
}

// statics are the files that are served as they are.
var statics = []string{"usher.css", "usher.js", "icon.svg"}

// edition changes with the files, so that browsers may keep them.
var edition = func() string {
	sum := sha256.New()
	for _, name := range statics {
		b, err := files.ReadFile("static/" + name)
		if err != nil {
			panic(err) // embedded: a slip of ours
		}
		sum.Write(b)
	}
	return hex.EncodeToString(sum.Sum(nil)[:4])
}()

// Static serves an embedded file.
func Static(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("id")
	if !slices.Contains(statics, name) {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Cache-Control", "private, max-age=3600")
	if !strings.Contains(r.URL.RawQuery, edition) {
		w.Header().Set("Cache-Control", "no-store")
	}
	http.ServeFileFS(w, r, files, "static/"+name)
}

var funcs = template.FuncMap{
	"ago":     func(t time.Time) string { return Ago(time.Since(t)) },
	"stamp":   func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") + " UTC" },
	"iso":     func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"span":    Span,
	"count":   Count,
	"plural":  Plural,
	"bytes":   Bytes,
	"name":    TenantName,
	"short":   Short,
	"words":   Beginning,
	"shown":   snapshot.Shown,
	"edition": func() string { return edition },
	"tone":    tone,
	"sign":    sign,
	"tenant":  func(platform, code string) string { return TenantURL(platform, code, "") },
	"input":   Input,
	"filter":  store.Exact, // of this tenant alone, not of its namesakes
}
