package testkit

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
)

// TrustTestServers makes this process trust the certificate that every TLS server of package httptest has. Call it
// before the first TLS connection: package x509 reads the variable once.
func TrustTestServers() {
	srv := httptest.NewTLSServer(http.NotFoundHandler())
	defer srv.Close()
	file, err := os.CreateTemp("", "usher-test-ca-*.pem")
	if err != nil {
		panic(err)
	}
	defer file.Close()
	if err := pem.Encode(file, &pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}); err != nil {
		panic(err)
	}
	os.Setenv("SSL_CERT_FILE", file.Name())
}
