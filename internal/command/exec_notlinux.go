//go:build !linux

package command

// hideMemory: elsewhere it is the system's own rules that say who may look.
func hideMemory() error { return nil }
