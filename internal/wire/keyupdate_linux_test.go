package wire

import (
	"bufio"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// A server says new keys, and wants some of us, while the connection is idle and in the
// middle of an answer. It is not what a call has to notice, and the connection is kept.
func TestKeyUpdates(t *testing.T) {
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("needs openssl, which can be told to update its keys")
	}
	server, client := certificates(t)
	dir := t.TempDir()
	key, err := x509.MarshalPKCS8PrivateKey(server.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: server.Certificates[0].Certificate[0]}, "key.pem": {Type: "PRIVATE KEY", Bytes: key}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	cmd := exec.Command(openssl, "s_server", "-accept", addr, "-tls1_3", "-cert", filepath.Join(dir, "cert.pem"), "-key", filepath.Join(dir, "key.pem"))
	theirs, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	cmd.Stdin = theirs
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	said := bufio.NewReader(out)
	until := func(word string) {
		t.Helper()
		for {
			line, err := said.ReadString('\n')
			if err != nil {
				t.Fatalf("waiting for %q: %v", word, err)
			}
			if strings.Contains(line, word) {
				return
			}
		}
	}
	until("ACCEPT")
	cl := newClient(t, func(c *Config) { c.TLS = client })
	for i := range 3 {
		got := make(chan string, 1)
		go func() {
			status, body, err := call(cl, request(t, t.Context(), "GET", "https://"+addr+"/"+fmt.Sprint(i), nil))
			got <- fmt.Sprint(status, " ", body, " ", err)
		}()
		until(fmt.Sprintf("GET /%d ", i))
		// Each line is one write of the server's; K and k are its commands. (Its line ends
		// are bare, which net/http takes.)
		for _, line := range []string{"HTTP/1.1 200 OK\n", "K\n", "Content-Length: 4\n", "k\n", "\n", "one\n", "K\n", "k\n"} {
			io.WriteString(in, line)
			for unread(in) > 0 {
				time.Sleep(time.Millisecond) // it would read two lines at once, and see no command
			}
		}
		if got := <-got; got != "200 one\n <nil>" {
			t.Fatalf("call %d: %q", i, got)
		}
	}
	cl.pool.mu.Lock()
	defer cl.pool.mu.Unlock()
	if len(cl.pool.idle) != 1 {
		t.Error("the connection was not kept")
	}
}

// unread is how many bytes wait in a pipe.
func unread(pipe *os.File) int {
	const fionread = 0x541B
	var n int32
	raw, err := pipe.SyscallConn()
	if err != nil {
		panic(err)
	}
	raw.Control(func(fd uintptr) { syscall.Syscall(syscall.SYS_IOCTL, fd, fionread, uintptr(unsafe.Pointer(&n))) })
	return int(n)
}
