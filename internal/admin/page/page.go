// Package page draws the pages of the admin port: templates, charts, and words for times and numbers. It only
// draws what package admin passes in.
//
// There is no build step, and nothing is loaded from elsewhere: the templates, one style sheet and one small
// script are embedded. Everything can be read and done without the script. With it, the parts of a page that
// are marked data-live update themselves.
package page

import (
	"bytes"
	"cmp"
	"embed"
	"html/template"
	"net/http"
	"strings"
	"sync"
	"time"

	"usher/internal/inbox"
	"usher/internal/snapshot"
	"usher/internal/text"
	"usher/internal/view"
)

//go:embed html static
var files embed.FS

// Page is one page: its content, and what the layout around it needs.
type Page struct {
	Name        string // of its template
	Status      int    // of the answer; zero means 200
	Title       string
	Section     string // the item of the main menu that is marked: overview, webhooks, tenants or actions
	Version     string
	Live        bool // the script keeps it up to date
	HasWebhooks bool // there is a gate or an inbox, so the menu has the webhooks
	HasInbox    bool // so the menu has tenants and actions
	ReadOnly    bool // the visitor may not act: see mayAct
	Notice      string
	Paused      []Paused
	Ask         *Question // asked before an act is done; nil: nothing is
	Body        any       // what the template of this name shows
}

// Paused is a pause in force, and what can be done to it.
type Paused struct {
	inbox.Pause
	Offers []Offer
}

// An Offer is a button of something that people can do.
type Offer struct {
	Act           string // its name
	Label         string
	Ask           string            // the address of the page that asks first; empty: the button acts at once
	Fields        map[string]string // what it is done to
	Means         string            // beside the button; may be empty
	Quiet, Danger bool              // how the button looks
}

// Class is that of the button.
func (o Offer) Class() string {
	switch {
	case o.Quiet:
		return "quiet"
	case o.Danger:
		return "danger"
	}
	return ""
}

// A Question is the dialog in a page that asks before an act is done. Its form sends the POST that acts. It is open
// when the page comes, so it needs no script.
type Question struct {
	Act     string
	Words   string
	Effect  string            // what the act does
	Warning string            // may be empty
	Button  string            // empty if there is nothing to do
	Fields  map[string]string // what it is done to
	Inputs  []Input           // what else people may give
	Back    string            // address of the page without it
	Danger  bool              // draws the button in the colour of a warning

	Other, OtherButton string // address and label of another question; may be empty
}

// An Input is a field that people may fill in.
type Input struct{ Name, Label string }

// names of the pages. Each has a template that defines "main", which the layout includes.
var names = []string{"overview", "webhooks", "webhook", "tenants", "tenant", "actions", "failure"}

// The templates are parsed when somebody opens a page: most ushers never show one. A template puts whatever
// acts into {{if mayAct}}; in the read-only ones mayAct is false.
var (
	templates         = sync.OnceValue(func() map[string]*template.Template { return parse(true) })
	readOnlyTemplates = sync.OnceValue(func() map[string]*template.Template { return parse(false) })
)

func parse(mayAct bool) map[string]*template.Template {
	may := template.FuncMap{"mayAct": func() bool { return mayAct }}
	base := template.New("layout.html").Funcs(funcs).Funcs(may)
	template.Must(base.ParseFS(files, "html/layout.html", "html/parts.html"))
	all := make(map[string]*template.Template)
	for _, name := range names {
		all[name] = template.Must(template.Must(base.Clone()).ParseFS(files, "html/"+name+".html"))
	}
	return all
}

// Policy is the Content-Security-Policy of all pages: they load only what this port serves. Scripts and
// styles are files, so nothing in a payload can become one.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// Write renders the whole page before it sends anything, so that an error in a template never leaves half a page.
func Write(w http.ResponseWriter, p *Page) error {
	parsed := templates
	if p.ReadOnly {
		parsed = readOnlyTemplates
	}
	var out bytes.Buffer
	if err := parsed()[p.Name].Execute(&out, p); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(cmp.Or(p.Status, http.StatusOK))
	_, _ = w.Write(out.Bytes()) // the reader may be gone; nothing to do about it
	return nil
}

// Static serves the static file whose name is the path value "id".
func Static(w http.ResponseWriter, r *http.Request) {
	http.ServeFileFS(w, r, files, "static/"+r.PathValue("id"))
}

var funcs = template.FuncMap{
	"age":       view.Age,
	"stamp":     view.Stamp,
	"stampAge":  view.StampAge,
	"iso":       func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"span":      view.Span,
	"count":     view.Count,
	"plural":    view.Plural,
	"bytes":     view.Bytes,
	"tenantURL": view.TenantURL,
	"excerpt":   view.Excerpt,
	"shown":     snapshot.Shown,
	"tone":      view.Tone,
	"input":     FormatInput,
	"short":     func(words string) string { return text.Shorten(words, maxCell) },
	// This filter selects one tenant, and not those of the same code on other platforms.
	"tenantExact": inbox.ShowTenant,
	"changeClass": changeClass,
}

// maxCell is how many characters of a cell a page shows: a browser would need minutes to lay out a very long one.
const maxCell = 640

// InputTime is the format of <input type="datetime-local">. On our pages it is always UTC.
const InputTime = "2006-01-02T15:04"

// FormatInput writes a time in the format of InputTime; the zero time is empty.
func FormatInput(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(InputTime)
}

// changeClass returns the CSS class of a change as package snapshot writes it: "+ sso", "- sso" or "users: 5 → 7".
func changeClass(change string) string {
	switch {
	case strings.HasPrefix(change, "+ "):
		return "added"
	case strings.HasPrefix(change, "- "):
		return "removed"
	default:
		return "changed"
	}
}
