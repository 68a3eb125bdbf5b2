package sdk

import (
	"strings"
	"testing"
)

func TestCommand(t *testing.T) {
	const script = `console.log(typeof require("@bunnyapp/api-client"), process.argv[2])`
	out, err := Command(t, script, "argument").CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), " argument\n") {
		t.Errorf("%v: %s", err, out)
	}
}
