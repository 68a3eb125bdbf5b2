// Recording makes docs/demo.svg, the moving picture in the README, and docs/demo.txt, what a
// terminal of 80x40 shows after half a minute, from a real run of the demo. From the top of
// the tree:
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
	length        = 20 * time.Second // of the recording; the demo's half minute goes faster
	rest          = 4 * time.Second  // on the last picture
	lineHeight    = 17
	charWidth     = 8.0
	lastLine      = "From now on a webhook comes every few seconds."
)

// line is one that the demo printed.
type line struct {
	at   time.Duration
	text string
}

func main() {
	log.SetFlags(0)
	lines, err := record()
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile("docs/demo.svg", []byte(draw(lines)), 0o644); err != nil {
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
	cmd.Env = []string{"PATH=" + dir} // where a hint finds it as usher
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	begin := time.Now()
	lines := []line{{0, "$ usher demo"}}
	for in := bufio.NewScanner(out); in.Scan(); {
		text := in.Text()
		if n := len([]rune(text)); n > columns {
			return nil, fmt.Errorf("%d columns: %s", n, text)
		}
		lines = append(lines, line{time.Since(begin), text})
		if text == lastLine {
			break
		}
	}
	cancel()
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait() // it was interrupted
	if len(lines) == 1 {
		return nil, errors.New("the demo printed nothing: are its ports free?")
	}
	return lines, nil
}

// draw makes an animated picture: each line appears at its time, and what does not fit
// scrolls.
func draw(lines []line) string {
	total := length + rest
	scale := float64(length) / float64(lines[len(lines)-1].at)
	percent := func(at time.Duration) string {
		return fmt.Sprintf("%.2f%%", 100*float64(at)*scale/float64(total))
	}
	var styles, texts, scroll strings.Builder
	for i, l := range lines {
		fmt.Fprintf(&styles, "@keyframes l%d{0%%{opacity:0}%s{opacity:1}100%%{opacity:1}}\n", i, percent(l.at))
		fmt.Fprintf(&texts, "<text y=\"%d\" style=\"animation-name:l%d\"%s>%s</text>\n", (i+1)*lineHeight, i, class(l.text), colours(l.text))
		if over := i + 1 - rows; over > 0 {
			fmt.Fprintf(&scroll, "%s{transform:translateY(-%dpx)}\n", percent(l.at), over*lineHeight)
		}
	}
	if over := len(lines) - rows; over > 0 {
		fmt.Fprintf(&styles, "@keyframes up{0%%{transform:none}\n%s100%%{transform:translateY(-%dpx)}}\n", scroll.String(), over*lineHeight)
	}
	width, height := int(columns*charWidth)+24, rows*lineHeight+24
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" role="img">
<title>usher demo in a terminal</title>
<style>
text{font:13.3px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre;fill:#d6deeb}
.b{fill:#fff;font-weight:bold}.r{fill:#ff7b72}.y{fill:#e3b341}.g{fill:#56d364}
text,#all{animation:%[3]ds step-end infinite}
#all{animation-name:up}
@media (prefers-reduced-motion){text,#all{animation:none}#all{transform:translateY(-%[6]dpx)}}
%[4]s</style>
<rect width="100%%" height="100%%" rx="8" fill="#0d1117"/>
<svg x="12" y="8" width="%[7]d" height="%[8]d"><g id="all">
%[5]s</g></svg>
</svg>
`, width, height, int(total.Seconds()), styles.String(), texts.String(), max(0, len(lines)-rows)*lineHeight, width-24, rows*lineHeight+6)
}

var (
	heading = regexp.MustCompile(`^\d\. |^\$ `)
	result  = regexp.MustCompile(`^(   .{42} )(\S.*)$`)
)

func class(text string) string {
	if heading.MatchString(text) {
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
