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

// SameUser returns a listener that accepts only the connections of this process's user. l must listen on
// an IPv4 loopback address. It is an error if the kernel does not say who owns a connection.
func SameUser(l net.Listener, log *slog.Logger) (net.Listener, error) {
	user := uint32(os.Geteuid())
	// The table is for kernels without sock_diag, such as gVisor. To search it takes longer the more
	// connections the machine has.
	var failures []error
	for _, owner := range []ownerFunc{askKernel, readTable} {
		err := try(l, owner, user)
		if err == nil {
			return &listener{Listener: l, owner: owner, user: user, log: log}, nil
		}
		failures = append(failures, err)
	}
	return nil, fmt.Errorf("the kernel does not say which user owns a connection: %w", errors.Join(failures...))
}

// try checks that owner finds a connection of our own.
func try(l net.Listener, owner ownerFunc, user uint32) error {
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return err
	}
	defer conn.Close()
	// This may be the connection of somebody else, who was first. That does not matter here.
	accepted, err := l.Accept()
	if err != nil {
		return err
	}
	defer accepted.Close()
	uid, err := owner(addrPort(conn.LocalAddr()), addrPort(conn.RemoteAddr()))
	if err == nil && uid != user {
		err = fmt.Errorf("the kernel says that our own connection belongs to user %d, not %d", uid, user)
	}
	return err
}

var errGone = errors.New("no process holds the other end")

// From linux/inet_diag.h and sock_diag.h. The Go structs below have the layout of the C structs, which
// have no padding.
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

// diagRequest is a nlmsghdr followed by an inet_diag_req_v2.
type diagRequest struct {
	Length          uint32
	Type, Flags     uint16
	Sequence, From  uint32
	Family, Proto   uint8
	Extensions, Pad uint8
	States          uint32
	ID              sockID
}

// diagAnswer is an inet_diag_msg.
type diagAnswer struct {
	Family, State, Timer, Retransmits uint8
	ID                                sockID
	Expires, ReadQueue, WriteQueue    uint32
	UID, Inode                        uint32
}

// askKernel asks the kernel through a sock_diag socket. The kernel looks up the connection as it does for
// an IPv4 packet that arrives, so it also finds a client with a dual-stack socket.
func askKernel(client, server netip.AddrPort) (uint32, error) {
	id := sockID{Cookie: [2]uint32{^uint32(0), ^uint32(0)}} // "no cookie"
	binary.BigEndian.PutUint16(id.LocalPort[:], client.Port())
	binary.BigEndian.PutUint16(id.RemotePort[:], server.Port())
	copy(id.Local[:], client.Addr().AsSlice())
	copy(id.Remote[:], server.Addr().AsSlice())
	req := diagRequest{
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
	var sock diagAnswer
	if _, err := binary.Decode(payload, binary.NativeEndian, &sock); err != nil {
		return 0, fmt.Errorf("sock_diag: %w", err)
	}
	// If there is no such connection, the kernel returns the listener on that port. And a connection
	// that no process holds any more seems to be root's.
	same := sock.ID.LocalPort == id.LocalPort && sock.ID.RemotePort == id.RemotePort
	if sock.State == stateListen || sock.Inode == 0 || !same {
		return 0, errGone
	}
	return sock.UID, nil
}

// exchange sends a message to the kernel and returns its answer. It opens a socket each time, which
// costs a few microseconds, and leaves no state to keep.
func exchange(req diagRequest) (kind uint16, payload []byte, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		return 0, nil, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	// The kernel answers during the send. The timeout is for a kernel that does not.
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

// readTable searches the kernel's tables of all connections: that of IPv4 sockets, then that of IPv6
// sockets, which has dual-stack sockets with mapped addresses.
func readTable(client, server netip.AddrPort) (uint32, error) {
	from := tableAddress(client.Addr().AsSlice(), client.Port())
	to := tableAddress(server.Addr().AsSlice(), server.Port())
	uid, err := readFamily("/proc/net/tcp", from, to)
	if errors.Is(err, errGone) {
		client6, server6 := client.Addr().As16(), server.Addr().As16()
		from, to = tableAddress(client6[:], client.Port()), tableAddress(server6[:], server.Port())
		uid, err = readFamily("/proc/net/tcp6", from, to)
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

// tableAddress writes an address as the tables do: in hex, each 32 bits in the machine's byte order.
func tableAddress(addr []byte, port uint16) (s string) {
	for ; len(addr) > 0; addr = addr[4:] {
		s += fmt.Sprintf("%08X", binary.NativeEndian.Uint32(addr))
	}
	return fmt.Sprintf("%s:%04X", s, port)
}
