package engine

import "fmt"

// Migrations are scripts, each of which brings the tables from one version to the next, from version 1 on. They only
// add, because an older usher works on while a newer one starts, and is started again if that one is no good. The
// first line of each says down to which version an usher can still work with the tables: "-- compatible: N".
type Migrations []string

// From returns the scripts that tables of this version lack, and a statement that notes the version which they have
// then.
func (m Migrations) From(version int) (scripts []string, note string) {
	compatible := 0
	for n, script := range m {
		least := 0
		if _, err := fmt.Sscanf(script, "-- compatible: %d\n", &least); err != nil || least < 1 || least > n+1 {
			panic(fmt.Sprintf("migration %d does not say with which version it is compatible", n+1))
		}
		compatible = max(compatible, least)
	}
	note = fmt.Sprintf("UPDATE {schema}.schema_version SET version = %d, compatible = %d", len(m), compatible)
	return m[min(version, len(m)):], note
}

// Check returns an error if an usher that knows these migrations can't work with tables of a version that are
// compatible down to another.
func (m Migrations) Check(version, compatible int) error {
	if version > len(m) && compatible > len(m) {
		return fmt.Errorf("a newer usher made the tables "+
			"(version %d, which needs an usher that knows version %d; this one knows %d)", version, compatible, len(m))
	}
	return nil
}
