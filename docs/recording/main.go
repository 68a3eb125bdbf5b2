// Recording makes docs/demo.svg, the moving picture in the README: three scenes of one real run of the demo.
// From the top of the tree:
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
	"slices"
	"strings"
	"time"
)

const (
	columns    = 80
	lastRest   = 4 * time.Second // on the last lines
	lineHeight = 17
	charWidth  = 8.0
	lastLine   = "From now on a webhook comes every few seconds."
)

// scenes are those of the demo that the recording shows.
var scenes = []string{"2", "4", "8"}

// line is one that the demo printed.
type line struct {
	at   time.Duration
	text string
}

func main() {
	log.SetFlags(0)
	all, err := record()
	if err != nil {
		log.Fatal(err)
	}
	lines := choose(all)
	if err := os.WriteFile("docs/demo.svg", []byte(draw(lines)), 0o644); err != nil {
		log.Fatal(err)
	}
	log.Printf("%d lines in %v", len(lines), (lines[len(lines)-1].at + lastRest).Round(time.Second))
}

// choose keeps the lines of the scenes, one after the other, and says where something was left out.
func choose(all []line) []line {
	lines, shown, left := all[:1:1], false, time.Duration(0)
	for i, l := range all[1:] {
		before := all[i] // as i counts from all[1:]
		if m := heading.FindStringSubmatch(l.text); m != nil {
			if now := slices.Contains(scenes, m[1]); now && !shown {
				lines = append(lines, line{before.at - left, ""})
				shown = true
			} else {
				shown = now
			}
		}
		if shown {
			lines = append(lines, line{l.at - left, l.text})
		} else {
			left += l.at - before.at
		}
	}
	return lines
}

// record runs the demo until its story is told.
func record() ([]line, error) {
	dir, err := os.MkdirTemp("", "usher-recording-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "usher")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "demo")
	cmd.Args[0] = "usher" // the demo's hints call it as it was called
	cmd.Env = []string{}  // no settings
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	begin := time.Now()
	lines := []line{{0, "$ go run . demo"}}
	for in := bufio.NewScanner(out); in.Scan(); {
		text := in.Text()
		if n := len([]rune(text)); n > columns {
			return nil, fmt.Errorf("%d columns: %s", n, text)
		}
		lines = append(lines, line{time.Since(begin), text})
		if strings.Contains(text, "is taken") { // the picture should show the ports that users will see
			err = errors.New("a port is not free: " + strings.TrimSpace(text))
			break
		}
		if text == lastLine {
			break
		}
	}
	cancel()
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait() // it was interrupted
	return lines, err
}

// draw makes an animated picture: each line appears at its time.
func draw(lines []line) string {
	length := lines[len(lines)-1].at + lastRest
	var styles, texts strings.Builder
	title := false // a title of two lines ends with a full stop
	for i, l := range lines {
		title = heading.MatchString(l.text) || title && !strings.HasSuffix(lines[i-1].text, ".")
		fmt.Fprintf(&styles, "@keyframes l%d{0%%{opacity:0}%.2f%%{opacity:1}100%%{opacity:1}}\n",
			i, 100*float64(l.at)/float64(length))
		fmt.Fprintf(&texts, "<text x=\"12\" y=\"%d\" style=\"animation-name:l%d\"%s>%s</text>\n",
			12+(i+1)*lineHeight, i, class(title), colours(l.text))
	}
	width, height := int(columns*charWidth)+24, (len(lines)+1)*lineHeight+12
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" role="img">
<title>three scenes of usher demo in a terminal</title>
<style>
text{font:13.3px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre;fill:#d6deeb;animation:%.1[3]fs step-end infinite}
.b{fill:#fff;font-weight:bold}.r{fill:#ff7b72}.y{fill:#e3b341}.g{fill:#56d364}
@media (prefers-reduced-motion){text{animation:none}}
%[4]s</style>
<rect width="100%%" height="100%%" rx="8" fill="#0d1117"/>
%[5]s</svg>
`, width, height, length.Seconds(), styles.String(), texts.String())
}

var (
	heading = regexp.MustCompile(`^(\d)\. `)
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
