package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// SameUser returns a listener that accepts only the connections of this process's user. l must listen on
// an IPv4 loopback address. It is an error if the kernel does not say who owns a connection, as in gVisor.
func SameUser(l net.Listener, log *slog.Logger) (net.Listener, error) {
	addr := l.Addr().(*net.TCPAddr)
	// No connection has both ends there: a kernel that can be asked says so.
	if _, err := askKernel(addr, addr); !errors.Is(err, errGone) {
		return nil, fmt.Errorf("the kernel does not say which user owns a connection: %w", err)
	}
	return &listener{Listener: l, owner: askKernel, user: uint32(os.Geteuid()), log: log}, nil
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
func askKernel(client, server *net.TCPAddr) (uint32, error) {
	id := sockID{Cookie: [2]uint32{^uint32(0), ^uint32(0)}} // "no cookie"
	binary.BigEndian.PutUint16(id.LocalPort[:], uint16(client.Port))
	binary.BigEndian.PutUint16(id.RemotePort[:], uint16(server.Port))
	copy(id.Local[:], client.IP.To4())
	copy(id.Remote[:], server.IP.To4())
	req := diagRequest{Type: sockDiagByFamily, Flags: unix.NLM_F_REQUEST, Sequence: 1, Family: unix.AF_INET,
		Proto: unix.IPPROTO_TCP, States: ^uint32(0), ID: id}
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

// exchange sends a message to the kernel, which answers during the send, and returns the answer.
func exchange(req diagRequest) (kind uint16, payload []byte, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		return 0, nil, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
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
