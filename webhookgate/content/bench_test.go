package content

import (
	"strings"
	"testing"
)

func BenchmarkParseAndValidate(b *testing.B) {
	v, err := NewRules([]string{TenantProvisioningChange}, nil)
	if err != nil {
		b.Fatal(err)
	}
	// One more feature in each list: 1.2 KB.
	body := []byte(strings.ReplaceAll(documented, `"quantity":25}`, `"quantity":25},{"code":"seats","name":"Seats on site","value":"","quantity":7}`))
	b.SetBytes(int64(len(body)))
	b.Run("parse", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, fault := Parse(body); fault != nil {
				b.Fatal(fault)
			}
		}
	})
	b.Run("parse and validate", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			value, fault := Parse(body)
			if fault != nil || len(v.Faults(value)) > 0 {
				b.Fatal(fault)
			}
		}
	})
}
