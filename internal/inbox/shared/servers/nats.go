package servers

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
)

// NATS says how to reach the cluster that keeps an inbox of several replicas.
type NATS struct {
	// Servers are their addresses, each as nats://host:port. Required.
	Servers []string
	// Stream is the stream's name. Required.
	Stream string
	// Replicas is how many servers keep a copy; zero: three in a cluster, one on a
	// single server, or as many as an existing stream has.
	Replicas int
	// What usher shows of itself; nil and empty: nothing. The funcs are asked at each
	// connection.
	User                  string
	Password, Token, Seed func() string
	CredsFile             string
	// TLS is used where a server asks for it, or its address begins with tls.
	TLS *tls.Config

	// Tests' own.
	Options []nats.Option
	Parts   int // into which the lanes fall; zero: as ever
}

// Prefix begins the subjects of what waits, HistoryPrefix those of what is finished, and LivePrefix those of what replicas
// tell each other and nobody keeps.
func (n *NATS) Prefix() string        { return strings.ToLower(n.Stream) + "." }
func (n *NATS) HistoryPrefix() string { return strings.ToLower(n.Stream) + "_history." }
func (n *NATS) LivePrefix() string    { return strings.ToLower(n.Stream) + "_live." }

// streamName is what JetStream takes as a stream's name, and can begin a subject.
var streamName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// IsNATS says whether an inbox of that address is one on a NATS cluster.
func IsNATS(address string) bool {
	address = strings.ToLower(address)
	return strings.HasPrefix(address, "nats://") || strings.HasPrefix(address, "tls://")
}

// ParseNATS reads nats://host1,host2[?stream=NAME&replicas=N]. Its errors say what is
// wrong, and nothing of what may be a password.
func ParseNATS(address string) (*NATS, error) {
	scheme, rest, _ := strings.Cut(address, "://")
	scheme = strings.ToLower(scheme)
	hosts, rawQuery, _ := strings.Cut(rest, "?")
	if strings.Contains(hosts, "@") {
		return nil, ErrUserInAddress
	}
	n := &NATS{Stream: "USHER"}
	for host := range strings.SplitSeq(strings.TrimSuffix(hosts, "/"), ",") {
		u, err := url.Parse(scheme + "://" + strings.TrimSpace(host))
		if err == nil && u.Port() == "" {
			u.Host += ":4222"
		}
		if err != nil || u.Hostname() == "" || u.Path != "" || !isPort(u.Port()) {
			return nil, fmt.Errorf("has the host %q, which should be a name or address, with or without a port", host)
		}
		n.Servers = append(n.Servers, u.String())
	}
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return nil, errors.New("has a part after the question mark that can't be read: stream=NAME and replicas=N can stand there")
	}
	for name, values := range query {
		value := values[len(values)-1]
		switch name {
		case "stream":
			if n.Stream = value; !streamName.MatchString(value) {
				return nil, fmt.Errorf("has the stream %q, which should be a name of letters, digits, - and _", value)
			}
		case "replicas":
			if n.Replicas, err = strconv.Atoi(value); err != nil || n.Replicas < 1 || n.Replicas > 5 {
				return nil, fmt.Errorf("has replicas=%q, which should be a number from 1 to 5", value)
			}
		default:
			return nil, fmt.Errorf("has %q after the question mark, where only stream=NAME and replicas=N can stand", name)
		}
	}
	return n, nil
}

func isPort(text string) bool {
	_, err := strconv.ParseUint(text, 10, 16)
	return err == nil
}

// ErrUserInAddress says that an address holds what belongs in User and Password.
var ErrUserInAddress = errors.New("has a user or password in it")

// connect begins to connect, and goes on with that in the background for as long as
// it takes. why says of a connection that is not there what is in its way.
func (n *NATS) connect(log *slog.Logger) (nc *nats.Conn, why func() error, err error) {
	var failed atomic.Pointer[error]
	host, err := os.Hostname()
	if err != nil {
		host = "of an unknown host"
	}
	options := []nats.Option{
		nats.Name("usher " + host),
		nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1),
		// A password that was rotated is right again one day.
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(500 * time.Millisecond), nats.ReconnectJitter(250*time.Millisecond, 250*time.Millisecond),
		// While there is no connection a sender is told so at once.
		nats.ReconnectBufSize(-1),
		nats.Timeout(2 * time.Second),
		// A server that hangs is left after some seconds.
		nats.PingInterval(2 * time.Second), nats.MaxPingsOutstanding(2),
		// A write to it holds a lock that all others need, also those who only ask whether there is a connection.
		nats.FlusherTimeout(2 * time.Second), nats.ReconnectOnFlusherError(),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { failed.Store(&err) }),
		nats.ConnectHandler(func(c *nats.Conn) {
			log.Info("inbox connected", "server", c.ConnectedServerName())
		}),
		nats.ReconnectHandler(func(c *nats.Conn) {
			log.Info("inbox connected again", "server", c.ConnectedServerName())
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("inbox lost its connection", "err", err)
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			log.Warn("inbox connection reports an error", "err", err)
		}),
	}
	switch {
	case n.CredsFile != "":
		options = append(options, nats.UserCredentials(n.CredsFile))
	case n.Seed != nil:
		option, err := seedOption(n.Seed)
		if err != nil {
			return nil, nil, err
		}
		options = append(options, option)
	case n.Token != nil:
		options = append(options, nats.TokenHandler(n.Token))
	case n.User != "" || n.Password != nil:
		options = append(options, nats.UserInfoHandler(func() (string, string) {
			if n.Password == nil {
				return n.User, ""
			}
			return n.User, n.Password()
		}))
	}
	if n.TLS != nil {
		options = append(options, nats.Secure(n.TLS))
	}
	nc, err = nats.Connect(strings.Join(n.Servers, ","), append(options, n.Options...)...)
	return nc, func() error {
		err := nc.LastError()
		if last := failed.Load(); last != nil && (err == nil || errors.Is(err, nats.ErrNoServers)) {
			err = *last
		}
		return fmt.Errorf("no connection to %s: %w", strings.Join(n.Servers, ", "), cmp.Or(err, nats.ErrNoServers))
	}, err
}

// seedOption signs the servers' challenges with an NKey.
func seedOption(seed func() string) (nats.Option, error) {
	pair, err := nkeys.FromSeed([]byte(seed()))
	if err != nil {
		return nil, errors.New("the NKey seed of the inbox can't be used: it should begin with SU")
	}
	public, err := pair.PublicKey()
	if err != nil {
		return nil, err
	}
	return nats.Nkey(public, func(nonce []byte) ([]byte, error) { return pair.Sign(nonce) }), nil
}

// Check says whether the servers can be reached and used, without changing anything. It
// tries each of them once: somebody waits for the answer.
func (n *NATS) Check(ctx context.Context) (found string, err error) {
	once := *n
	once.Options = append(slices.Clone(n.Options), nats.RetryOnFailedConnect(false), nats.MaxReconnects(0))
	nc, _, err := once.connect(slog.New(slog.DiscardHandler))
	if errors.Is(err, nats.ErrNoServers) {
		err = errors.New("connection refused") // that is when the library says so
	}
	if err != nil {
		return "", fmt.Errorf("no connection to %s: %w", strings.Join(n.Servers, ", "), err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return "", err
	}
	if err := checkVersion(nc.ConnectedServerName(), nc.ConnectedServerVersion()); err != nil {
		return "", err
	}
	replicas := n.replicas(nc)
	stream, err := js.Stream(ctx, n.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Sprintf("the stream %s will be made (replicas: %d)", n.Stream, replicas), nil
	}
	if errors.Is(err, nats.ErrNoResponders) {
		err = errors.New("the servers have no JetStream: enable it in their configuration, for this account")
	}
	if err != nil {
		return "", err
	}
	if faults := misfits(n.waiting(replicas, 0), &stream.CachedInfo().Config, n.Replicas); len(faults) > 0 {
		return "", &misfitError{"the existing stream does not fit", faults}
	}
	return fmt.Sprintf("the stream %s is there (replicas: %d)", n.Stream, stream.CachedInfo().Config.Replicas), nil
}
