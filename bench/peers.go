package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const ours = "usher"

// A peer is a program that adds a token to calls: usher, or what people would use instead. Each is told what a careful
// person would tell it for this one purpose: one worker, connections to the service kept, no access log.
type peer struct {
	name    string
	program string                                                        // that must be installed; empty: none
	command func(o *court, listen string) (args, env []string, err error) // how to run it
}

var peers = []peer{
	{ours, "", usherCommand},
	{"ReverseProxy", "", func(o *court, listen string) ([]string, []string, error) {
		return []string{o.reverseProxy, "-listen", listen, "-to", "http://" + o.service, "-token", o.token}, nil, nil
	}},
	{"Caddy", "caddy", caddyCommand},
	{"nginx", "nginx", nginxCommand},
}

func usherCommand(o *court, listen string) (args, env []string, err error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, nil, err
	}
	return []string{o.usher}, []string{
		"USHER_CLIENT_ID=bench", "USHER_CLIENT_SECRET=bench", "USHER_BASE_URL=http://" + o.service,
		"USHER_LISTEN=" + listen, "USHER_ADMIN_LISTEN=" + ports[0],
	}, nil
}

// file is one of a peer's own, by the address that it listens on.
func (o *court) file(listen, name string) string {
	return filepath.Join(o.dir, strings.ReplaceAll(listen, ":", "-")+"-"+name)
}

func nginxCommand(o *court, listen string) (args, env []string, err error) {
	temporary := ""
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		temporary += fmt.Sprintf("  %s_temp_path %s;\n", kind, o.file(listen, kind))
	}
	text := fmt.Sprintf(`daemon off; master_process off; worker_processes 1;
pid %s; error_log stderr error;
events { worker_connections 8192; }
http {
  access_log off; keepalive_requests 100000000;
%s  upstream service { server %s; keepalive 1024; keepalive_requests 100000000; }
  server {
    listen %s backlog=4096;
    location = /graphql {
      proxy_pass http://service; proxy_http_version 1.1;
      proxy_set_header Connection ""; proxy_set_header Authorization "Bearer %s";
      proxy_buffer_size 16k; proxy_buffers 8 16k; proxy_busy_buffers_size 32k;
    }
  }
}
`, o.file(listen, "pid"), temporary, o.service, listen, o.token)
	file := o.file(listen, "nginx.conf")
	return []string{o.program("nginx"), "-c", file, "-e", "stderr"}, nil, os.WriteFile(file, []byte(text), 0o600)
}

func caddyCommand(o *court, listen string) (args, env []string, err error) {
	text := fmt.Sprintf(`{
  admin off
  auto_https off
}
http://%s {
  reverse_proxy http://%s {
    header_up Authorization "Bearer %s"
    transport http {
      keepalive_idle_conns_per_host 1024
    }
  }
}
`, listen, o.service, o.token)
	file, home := o.file(listen, "Caddyfile"), o.file(listen, "caddy")
	args = []string{o.program("caddy"), "run", "--config", file, "--adapter", "caddyfile"}
	return args, []string{"HOME=" + home, "XDG_DATA_HOME=" + home, "XDG_CONFIG_HOME=" + home}, os.WriteFile(file, []byte(text), 0o600)
}

// program is the path of one that is installed; empty: it is not.
func (o *court) program(name string) string {
	path, _ := exec.LookPath(name)
	return path
}
