package peer

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// SameUser returns l with the connections of this process's user only. l must listen on an IPv4
// loopback address. It is an error if the kernel does not say who owns a connection.
func SameUser(l net.Listener, log *slog.Logger) (net.Listener, error) {
	user := uint32(os.Geteuid())
	// The second is for kernels that do not have the first, such as gVisor.
	var all []error
	for _, ask := range []owner{askKernel, readTable} {
		err := try(l, ask, user)
		if err == nil {
			return &listener{Listener: l, owner: ask, user: user, log: log}, nil
		}
		all = append(all, err)
	}
	return nil, fmt.Errorf("the kernel does not say which user owns a connection: %w", errors.Join(all...))
}

// try checks that ask finds a connection of our own.
func try(l net.Listener, ask owner, user uint32) error {
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return err
	}
	defer conn.Close()
	// Somebody else's connection may be accepted first. Here it does not matter whose it is.
	accepted, err := l.Accept()
	if err != nil {
		return err
	}
	defer accepted.Close()
	uid, err := ask(addrPort(conn.LocalAddr()), addrPort(conn.RemoteAddr()))
	if err == nil && uid != user {
		err = fmt.Errorf("the kernel says that our own connection belongs to user %d, not %d", uid, user)
	}
	return err
}

var errGone = errors.New("no process holds the other end")

// From linux/inet_diag.h and sock_diag.h. A message has the layout of C structs; those below have
// no gaps.
const (
	sockDiagByFamily = 20
	stateListen      = 10
)

// sockID is inet_diag_sockid. Ports and addresses are in network byte order.
type sockID struct {
	LocalPort, RemotePort [2]byte
	Local, Remote         [16]byte
	Interface             uint32
	Cookie                [2]uint32
}

// request is a nlmsghdr and inet_diag_req_v2.
type request struct {
	Length          uint32
	Type, Flags     uint16
	Sequence, From  uint32
	Family, Proto   uint8
	Extensions, Pad uint8
	States          uint32
	ID              sockID
}

// found is inet_diag_msg.
type found struct {
	Family, State, Timer, Retransmits uint8
	ID                                sockID
	Expires, ReadQueue, WriteQueue    uint32
	UID, Inode                        uint32
}

// askKernel asks with sock_diag. That finds a client with a dual-stack socket, too: the kernel looks for
// the connection as it does for each IPv4 packet that comes.
func askKernel(client, server netip.AddrPort) (uint32, error) {
	id := sockID{Cookie: [2]uint32{^uint32(0), ^uint32(0)}} // none
	binary.BigEndian.PutUint16(id.LocalPort[:], client.Port())
	binary.BigEndian.PutUint16(id.RemotePort[:], server.Port())
	copy(id.Local[:], client.Addr().AsSlice())
	copy(id.Remote[:], server.Addr().AsSlice())
	req := request{
		Type: sockDiagByFamily, Flags: unix.NLM_F_REQUEST, Sequence: 1,
		Family: unix.AF_INET, Proto: unix.IPPROTO_TCP, States: ^uint32(0), ID: id,
	}
	req.Length = uint32(binary.Size(req))
	kind, payload, err := exchange(req)
	switch {
	case err != nil:
		return 0, err
	case kind == unix.NLMSG_ERROR && len(payload) >= 4:
		errno := unix.Errno(-int32(binary.NativeEndian.Uint32(payload)))
		if errno == unix.ENOENT {
			return 0, errGone
		}
		return 0, os.NewSyscallError("sock_diag", errno)
	case kind != sockDiagByFamily:
		return 0, fmt.Errorf("sock_diag: an answer of type %d", kind)
	}
	var sock found
	if _, err := binary.Decode(payload, binary.NativeEndian, &sock); err != nil {
		return 0, fmt.Errorf("sock_diag: %w", err)
	}
	// If there is no such connection the kernel returns the listener on that port. And it
	// counts a connection that no process holds any more as root's.
	if sock.State == stateListen || sock.Inode == 0 || sock.ID.LocalPort != id.LocalPort || sock.ID.RemotePort != id.RemotePort {
		return 0, errGone
	}
	return sock.UID, nil
}

// exchange sends a message to the kernel and returns its answer. It opens a socket each time:
// that costs some microseconds for each connection, and there is no state to keep.
func exchange(req request) (kind uint16, payload []byte, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		return 0, nil, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	// The kernel answers during the send. If it ever does not, do not wait for it.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return 0, nil, os.NewSyscallError("setsockopt", err)
	}
	message, err := binary.Append(nil, binary.NativeEndian, req)
	if err != nil {
		return 0, nil, err
	}
	if err := unix.Sendto(fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, nil, os.NewSyscallError("sendto", err)
	}
	buf := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, buf, 0)
	switch {
	case err != nil:
		return 0, nil, os.NewSyscallError("recvfrom", err)
	case n < unix.NLMSG_HDRLEN:
		return 0, nil, errors.New("sock_diag: an answer without a header")
	}
	return binary.NativeEndian.Uint16(buf[4:]), buf[unix.NLMSG_HDRLEN:n], nil
}

// readTable searches the tables of all connections, of IPv4 sockets and of IPv6 sockets, which may be
// dual-stack and then have mapped addresses.
func readTable(client, server netip.AddrPort) (uint32, error) {
	uid, err := readFamily("/proc/net/tcp", inTable(client.Addr().AsSlice(), client.Port()), inTable(server.Addr().AsSlice(), server.Port()))
	if errors.Is(err, errGone) {
		from, to := client.Addr().As16(), server.Addr().As16()
		uid, err = readFamily("/proc/net/tcp6", inTable(from[:], client.Port()), inTable(to[:], server.Port()))
	}
	if errors.Is(err, os.ErrNotExist) { // a system without IPv6
		err = errGone
	}
	return uid, err
}

func readFamily(path, client, server string) (uint32, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// sl local remote state queues timer retransmits uid timeout inode
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || fields[1] != client || fields[2] != server {
			continue
		}
		if fields[9] == "0" {
			return 0, errGone
		}
		uid, err := strconv.ParseUint(fields[7], 10, 32)
		return uint32(uid), err
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	return 0, errGone
}

// inTable writes an address as the tables do: in hex, in words of the machine's byte order.
func inTable(addr []byte, port uint16) (s string) {
	for ; len(addr) > 0; addr = addr[4:] {
		s += fmt.Sprintf("%08X", binary.NativeEndian.Uint32(addr))
	}
	return fmt.Sprintf("%s:%04X", s, port)
}
