// Recording makes docs/demo.svg, the moving picture in the README: what the demo prints, then
// the admin page in Chromium. It also makes docs/demo.txt, what a terminal of 80x40 shows after
// half a minute. Both come from one real run of the demo. From the top of the tree:
//
//	go run ./docs/recording
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

const (
	columns, rows = 80, 40
	length        = 20 * time.Second // of the whole recording; the demo's half minute goes faster
	lineHeight    = 17
	charWidth     = 8.0
	lastLine      = "From now on a webhook comes every few seconds."
	lastRest      = time.Second // on the terminal's last lines, before the pages
)

// line is one that the demo printed.
type line struct {
	at   time.Duration
	text string
}

func main() {
	log.SetFlags(0)
	lines, pictures, err := record()
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile("docs/demo.svg", []byte(draw(lines, pictures)), 0o644); err != nil {
		log.Fatal(err)
	}
	var screen strings.Builder
	for _, l := range lines[max(0, len(lines)-rows):] {
		screen.WriteString(l.text + "\n")
	}
	if err := os.WriteFile("docs/demo.txt", []byte(screen.String()), 0o644); err != nil {
		log.Fatal(err)
	}
	log.Printf("%d lines in %v", len(lines), lines[len(lines)-1].at.Round(time.Second))
}

// record runs the demo until its story is told, then opens its admin page.
func record() ([]line, []picture, error) {
	dir, err := os.MkdirTemp("", "usher-recording-")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "usher")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		return nil, nil, fmt.Errorf("%w: %s", err, out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "demo")
	cmd.Args[0] = "usher" // the demo's hints call it as it was called
	cmd.Env = []string{}  // no settings
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	begin := time.Now()
	lines, admin := []line{{0, "$ usher demo"}}, ""
	for in := bufio.NewScanner(out); in.Scan(); {
		text := in.Text()
		if n := len([]rune(text)); n > columns {
			return nil, nil, fmt.Errorf("%d columns: %s", n, text)
		}
		lines = append(lines, line{time.Since(begin), text})
		if url, ok := strings.CutPrefix(text, "  admin page    "); ok {
			admin = url
		}
		if strings.Contains(text, "is taken") { // the picture should show the ports that users will see
			err = errors.New("a port is not free: " + strings.TrimSpace(text))
			break
		}
		if text == lastLine {
			break
		}
	}
	var pictures []picture
	if err == nil {
		pictures, err = photograph(ctx, admin)
	}
	cancel()
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait() // it was interrupted
	return lines, pictures, err
}

// draw makes an animated picture: each line appears at its time, lines that do not fit scroll,
// and the pages come last.
func draw(lines []line, pictures []picture) string {
	story := length - time.Duration(len(pictures))*pageTime
	scale := float64(story-lastRest) / float64(lines[len(lines)-1].at)
	percent := func(at time.Duration) string {
		return fmt.Sprintf("%.2f%%", 100*float64(at)*scale/float64(length))
	}
	var styles, texts, scroll strings.Builder
	title := false // a title of two lines ends with a full stop
	for i, l := range lines {
		title = heading.MatchString(l.text) || title && !strings.HasSuffix(lines[i-1].text, ".")
		fmt.Fprintf(&styles, "@keyframes l%d{0%%{opacity:0}%s{opacity:1}100%%{opacity:1}}\n", i, percent(l.at))
		fmt.Fprintf(&texts, "<text y=\"%d\" style=\"animation-name:l%d\"%s>%s</text>\n", (i+1)*lineHeight, i, class(title), colours(l.text))
		if over := i + 1 - rows; over > 0 {
			fmt.Fprintf(&scroll, "%s{transform:translateY(-%dpx)}\n", percent(l.at), over*lineHeight)
		}
	}
	if over := len(lines) - rows; over > 0 {
		fmt.Fprintf(&styles, "@keyframes up{0%%{transform:none}\n%s100%%{transform:translateY(-%dpx)}}\n", scroll.String(), over*lineHeight)
	}
	pageStyles, pages := drawPages(pictures, story)
	width, height := int(columns*charWidth)+24, rows*lineHeight+24
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" role="img">
<title>usher demo in a terminal, then its admin page in a browser</title>
<style>
text{font:13.3px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre;fill:#d6deeb}
.b{fill:#fff;font-weight:bold}.r{fill:#ff7b72}.y{fill:#e3b341}.g{fill:#56d364}
text.u{font:12px sans-serif;fill:#444}
text,#all,.p{animation:%[3]ds step-end infinite}
#all{animation-name:up}
@media (prefers-reduced-motion){text,#all,.p{animation:none}#all{transform:translateY(-%[6]dpx)}.p{display:none}}
%[4]s</style>
<rect width="100%%" height="100%%" rx="8" fill="#0d1117"/>
<svg x="12" y="8" width="%[7]d" height="%[8]d"><g id="all">
%[5]s</g></svg>
%[9]s</svg>
`, width, height, int(length.Seconds()), styles.String()+pageStyles, texts.String(), max(0, len(lines)-rows)*lineHeight, width-24, rows*lineHeight+6, pages)
}

var (
	heading = regexp.MustCompile(`^\d\. `)
	result  = regexp.MustCompile(`^(   .{42} )(\S.*)$`)
)

func class(title bool) string {
	if title {
		return ` class="b"`
	}
	return ""
}

// colours paints what came out as the demo does on a terminal.
func colours(text string) string {
	m := result.FindStringSubmatch(text)
	if m == nil || !strings.HasSuffix(m[1], "  ") {
		return html.EscapeString(text)
	}
	colour := "g"
	switch {
	case strings.HasPrefix(m[2], "4"):
		colour = "r"
	case strings.Contains(m[2], "dropped"), strings.HasSuffix(m[2], "waiting") && !strings.Contains(m[2], "0 waiting"):
		colour = "y"
	}
	return html.EscapeString(m[1]) + `<tspan class="` + colour + `">` + html.EscapeString(m[2]) + "</tspan>"
}
