package command

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"os"

	"usher/internal/inbox"
)

// A spool keeps lines until they are needed: the first ones in memory, the others in a file of the user's own, without a name.
type spool struct {
	count  int
	memory bytes.Buffer
	file   *os.File // nil: all are in memory
	named  bool     // the file still has a name
	out    *bufio.Writer
}

// spoolMemory is how many bytes of lines are in memory.
const spoolMemory = 8 << 20

func (s *spool) add(l tenantLine) (err error) {
	head := binary.AppendUvarint(nil, uint64(l.number))
	for _, part := range [][]byte{[]byte(l.found), l.text} {
		head = append(binary.AppendUvarint(head, uint64(len(part))), part...)
	}
	s.count++
	if s.file == nil && s.memory.Len()+len(head) <= spoolMemory {
		s.memory.Write(head)
		return nil
	}
	if s.file == nil {
		if s.file, err = os.CreateTemp("", "usher-reconcile-*"); err != nil { // mode 0600
			return err
		}
		s.named = os.Remove(s.file.Name()) != nil // Windows cannot do that while it is open
		s.out = bufio.NewWriterSize(s.file, 256<<10)
	}
	_, err = s.out.Write(head)
	return err
}

func (s *spool) addAll(lines []tenantLine) error {
	for _, line := range lines {
		if err := s.add(line); err != nil {
			return err
		}
	}
	return nil
}

// batches calls fn for all lines in their order, in batches. fn empties them.
func (s *spool) batches(fn func(*batch) error) error {
	var b batch
	err := s.each(func(line tenantLine) error {
		if b.add(line) {
			return fn(&b)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return fn(&b)
}

// each calls fn for all lines in their order. They are valid until fn returns.
func (s *spool) each(fn func(tenantLine) error) error {
	sources := []io.Reader{bytes.NewReader(s.memory.Bytes())}
	if s.file != nil {
		if err := s.out.Flush(); err != nil {
			return err
		}
		if _, err := s.file.Seek(0, io.SeekStart); err != nil {
			return err
		}
		sources = append(sources, s.file)
	}
	in := bufio.NewReaderSize(io.MultiReader(sources...), 256<<10)
	for range s.count {
		number, err := binary.ReadUvarint(in)
		if err != nil {
			return err
		}
		var parts [2][]byte
		for n := range parts {
			size, err := binary.ReadUvarint(in)
			if err != nil {
				return err
			}
			parts[n] = make([]byte, size)
			if _, err := io.ReadFull(in, parts[n]); err != nil {
				return err
			}
		}
		if err := fn(tenantLine{int(number), inbox.Result(parts[0]), parts[1]}); err != nil {
			return err
		}
	}
	return nil
}

func (s *spool) close() {
	if s.file != nil {
		s.file.Close()
		if s.named {
			_ = os.Remove(s.file.Name())
		}
	}
}
