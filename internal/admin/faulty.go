package admin

import (
	"encoding/json"
	"strconv"
	"strings"

	"usher/webhookgate/content"
)

// faultyLine is a line of a payload as it is shown, and what is wrong there.
type faultyLine struct {
	Text   string
	Faults []string
}

// beside puts each fault beside the line of an indented payload that it speaks of. A member that is missing is said where the object
// begins that should have it.
func beside(indented string, faults []content.Fault) []faultyLine {
	lines := strings.Split(indented, "\n")
	all, at := make([]faultyLine, len(lines)), make(map[string][]int) // the lines, by JSON pointer; a name may be there twice
	type level struct {
		path string
		next int // index of the next element of a list; less than zero: it is an object
	}
	stack := []level{{next: -1}}
	for i, line := range lines {
		all[i].Text = line
		rest := strings.TrimSpace(line)
		if rest = strings.TrimSuffix(rest, ","); rest == "}" || rest == "]" {
			stack = stack[:max(1, len(stack)-1)]
			continue
		}
		top := &stack[len(stack)-1]
		path := top.path
		if name, after, ok := cutName(rest); i > 0 && top.next < 0 && ok {
			path, rest = path+"/"+escapePointer.Replace(name), after
		} else if i > 0 && top.next >= 0 {
			path += "/" + strconv.Itoa(top.next)
			top.next++
		}
		at[path] = append(at[path], i)
		switch rest {
		case "{":
			stack = append(stack, level{path, -1})
		case "[":
			stack = append(stack, level{path, 0})
		}
	}
	for _, f := range faults {
		path, words := f.Path, f.Message
		for len(at[path]) == 0 && path != "" {
			path = path[:max(0, strings.LastIndexByte(path, '/'))]
		}
		if missing := f.Path[len(path):]; missing != "" {
			words = strings.TrimPrefix(missing, "/") + " " + words
		}
		for _, i := range at[path] {
			all[i].Faults = append(all[i].Faults, words)
		}
	}
	return all
}

var escapePointer = strings.NewReplacer("~", "~0", "/", "~1")

// cutName splits a member of an indented object.
func cutName(member string) (name, value string, ok bool) {
	for i := 1; i < len(member) && member[0] == '"'; i++ {
		switch member[i] {
		case '\\':
			i++
		case '"':
			value, ok = strings.CutPrefix(member[i+1:], ": ")
			return name, value, ok && json.Unmarshal([]byte(member[:i+1]), &name) == nil
		}
	}
	return "", "", false
}
