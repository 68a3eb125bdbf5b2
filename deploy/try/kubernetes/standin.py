"""What stands beside usher when deploy/kubernetes is tried: programs of other people, in one file.

  app     calls the billing service when it starts, when it is asked (GET /), and when it is told to end
  report  calls it once, and ends
  tls     puts TLS in front of the sandbox, as billing.example.com has it
  proxy   a database proxy that only waits
"""
import json
import os
import signal
import socket
import ssl
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def call():
    """The status of a call through the sidecar, or what went wrong."""
    query = json.dumps({"query": '{ accounts(filter: "", limit: 1) { id name } }'}).encode()
    try:
        request = urllib.request.Request(os.environ["BILLING_URL"], query, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status if "data" in json.load(answer) else "no data"
    except Exception as e:
        return repr(e)


class App(BaseHTTPRequestHandler):
    def do_GET(self):
        body = str(call()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass  # what the program logs is its calls


def app():
    print("the first call:", call(), flush=True)
    threading.Thread(target=ThreadingHTTPServer(("", 8000), App).serve_forever, daemon=True).start()
    signal.sigwait({signal.SIGTERM})
    print("the last call:", call(), flush=True)


def report():
    status = call()
    print("the call:", status, flush=True)
    sys.exit(status != 200)


def pipe(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def tls():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("/tls/tls.crt", "/tls/tls.key")
    listener = socket.create_server(("", 8443), backlog=128)
    while True:
        client, _ = listener.accept()
        threading.Thread(target=serve, args=(context, client), daemon=True).start()


def serve(context, client):
    try:
        with context.wrap_socket(client, server_side=True) as outer, socket.create_connection(("127.0.0.1", 9000)) as inner:
            threading.Thread(target=pipe, args=(outer, inner), daemon=True).start()
            pipe(inner, outer)
    except OSError:
        pass


def proxy():
    signal.sigwait({signal.SIGTERM})


signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
globals()[sys.argv[1]]()
