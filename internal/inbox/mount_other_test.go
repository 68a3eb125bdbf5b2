//go:build unix && !linux

package inbox

import "errors"

func mountSmall(string, string) error   { return errors.ErrUnsupported }
func remountSmall(string, string) error { return errors.ErrUnsupported }
func unmount(string)                    {}
