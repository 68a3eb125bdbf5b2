package webhookgate

import (
	"testing"

	"usher/internal/testkit"
)

func TestFilesInOrder(t *testing.T) { testkit.FilesInOrder(t, ".") }
