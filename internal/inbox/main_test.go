package inbox

import (
	"testing"

	"usher/internal/testkit"
)

func TestMain(m *testing.M) { testkit.MainInMemory(m) }
