package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"strings"
	"time"
)

// newToken makes a JWT of a usual length, 900 bytes. Nobody here checks its signature.
func newToken() string {
	encode := base64.RawURLEncoding.EncodeToString
	signature := make([]byte, 256)
	_, _ = rand.Read(signature) // never fails, by its documentation
	now := time.Now().Unix()
	claims := fmt.Sprintf(`{"iss":"bench","sub":"bench","scope":"standard:read standard:write",`+
		`"iat":%d,"exp":%d,"jti":%q,"permissions":"`, now, now+7200, rand.Text())
	head, tail := encode([]byte(`{"alg":"RS256","typ":"JWT"}`)), encode(signature)
	missing := (900-len(head)-len(tail)-2)*3/4 - len(claims) - len(`"}`)
	return head + "." + encode([]byte(claims+strings.Repeat("p", max(0, missing))+`"}`)) + "." + tail
}

// newCertificate writes a certificate for loopback, and its key. It is its own
// authority, so its file is also what to trust.
func newCertificate(certFile, keyFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true,
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := writePEM(certFile, "CERTIFICATE", cert); err != nil {
		return err
	}
	return writePEM(keyFile, "PRIVATE KEY", secret)
}

func writePEM(file, kind string, der []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
