package serve

import (
	"testing"

	"usher/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }
