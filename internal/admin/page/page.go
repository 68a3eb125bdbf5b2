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
	"net/url"
	"strings"
	"sync"
	"time"

	"usher/internal/inbox"
	"usher/internal/snapshot"
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
	Body        any // what the template of this name shows
}

// Paused is a pause in force, and what can be done to it.
type Paused struct {
	inbox.Pause
	Offers []Offer
}

// An Offer is a button of something that people can do.
type Offer struct {
	Act           string // its name
	Label         string // if it ends in …, the button leads to a page that asks; else it acts at once
	Address       string
	Fields        map[string]string // what it is done to, if the address does not say so
	Means         string            // beside the button; may be empty
	Quiet, Danger bool              // how the button looks
}

// Now reports whether the button acts at once.
func (o Offer) Now() bool { return !strings.HasSuffix(o.Label, "…") }

// Link is the address of the page that asks.
func (o Offer) Link() string {
	query := make(url.Values)
	for name, value := range o.Fields {
		query.Set(name, value)
	}
	if len(query) == 0 {
		return o.Address
	}
	return o.Address + "?" + query.Encode()
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

// names of the pages. Each has a template that defines "main", which the layout includes.
var names = []string{"overview", "webhooks", "webhook", "tenants", "tenant", "actions", "confirm", "failure"}

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
	"ago":        func(t time.Time) string { return Ago(time.Since(t)) },
	"stamp":      func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") + " UTC" },
	"iso":        func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"span":       Span,
	"count":      Count,
	"plural":     Plural,
	"bytes":      Bytes,
	"tenantName": TenantName,
	"tenantURL":  func(platform, code string) string { return TenantURL(platform, code, "") },
	// This filter selects one tenant, and not those of the same code on other platforms.
	"tenantExact": inbox.ShowTenant,
	"changes":     ShortChanges,
	"changeClass": changeClass,
	"excerpt":     Excerpt,
	"shown":       snapshot.Shown,
	"tone":        tone,
	"input":       FormatInput,
}
