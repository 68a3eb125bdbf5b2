package main

import (
	"fmt"
	"os"
	"strings"
)

// The peers that have a configuration file. Each is told what a careful person would
// tell it for this one purpose: one worker, connections to the service kept, no access
// log, the service's certificate checked.

func nginxCommand(o *court, listen, way string) (args, env []string, err error) {
	temporary := ""
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		temporary += fmt.Sprintf("  %s_temp_path %s;\n", kind, o.file(listen, kind))
	}
	verify := ""
	if way != plain {
		verify = fmt.Sprintf(`      proxy_ssl_verify on; proxy_ssl_trusted_certificate %s; proxy_ssl_name localhost;
      proxy_ssl_protocols TLSv1.2 TLSv1.3;
`, o.cert)
	}
	pass := strings.Replace(o.base(way), o.service[way], "service", 1)
	text := fmt.Sprintf(`daemon off; master_process off; worker_processes 1;
pid %s; error_log stderr error;
events { worker_connections 8192; }
http {
  access_log off; keepalive_requests 100000000;
%s  upstream service { server %s; keepalive %d; keepalive_requests 100000000; }
  server {
    listen %s backlog=4096;
    location = /graphql {
      proxy_pass %s; proxy_http_version 1.1;
      proxy_set_header Connection ""; proxy_set_header Authorization "Bearer %s";
      proxy_buffer_size 16k; proxy_buffers 8 16k; proxy_busy_buffers_size 32k;
%s    }
  }
}
`, o.file(listen, "pid"), temporary, o.service[way], keptPool, listen, pass, o.token, verify)
	file := o.file(listen, "nginx.conf")
	return []string{o.programs["nginx"], "-c", file, "-e", "stderr"}, nil, os.WriteFile(file, []byte(text), 0o600)
}

func haproxyCommand(o *court, listen, way string) (args, env []string, err error) {
	secure := ""
	if way == tls1 {
		secure = fmt.Sprintf("ssl verify required ca-file %s verifyhost localhost alpn http/1.1", o.cert)
	}
	text := fmt.Sprintf(`global
  nbthread 1
  maxconn 8192
defaults
  mode http
  timeout connect 10s
  timeout client 60s
  timeout server 60s
  http-reuse always
frontend local
  bind %s backlog 4096
  default_backend service
backend service
  http-request set-header Authorization "Bearer %s"
  server one %s pool-max-conn %d %s
`, listen, o.token, o.service[way], keptPool, secure)
	file := o.file(listen, "haproxy.cfg")
	return []string{o.programs["haproxy"], "-f", file, "-db", "-q"}, nil, os.WriteFile(file, []byte(text), 0o600)
}

func caddyCommand(idle int) command {
	return func(o *court, listen, way string) (args, env []string, err error) {
		transport := ""
		if idle > 0 {
			transport += fmt.Sprintf("      keepalive_idle_conns_per_host %d\n", idle)
		}
		if way != plain {
			transport += fmt.Sprintf("      tls\n      tls_trusted_ca_certs %s\n", o.cert)
		}
		text := fmt.Sprintf(`{
  admin off
  auto_https off
}
http://%s {
  reverse_proxy %s {
    header_up Authorization "Bearer %s"
    transport http {
%s    }
  }
}
`, listen, o.base(way), o.token, transport)
		file := o.file(listen, "Caddyfile")
		home := o.file(listen, "caddy")
		args = []string{o.programs["caddy"], "run", "--config", file, "--adapter", "caddyfile"}
		env = []string{"HOME=" + home, "XDG_DATA_HOME=" + home, "XDG_CONFIG_HOME=" + home}
		return args, env, os.WriteFile(file, []byte(text), 0o600)
	}
}
