package sandbox

import (
	"encoding/json"
	"errors"
	"time"
)

// These are the scalars of the schema. No query takes one as an argument.
type (
	moment  struct{ time.Time }       // with whole seconds
	day     string                    // as webhooks write it
	anyJSON struct{ json.RawMessage } // as it is
)

var errNoArgument = errors.New("not an argument")

func (moment) ImplementsGraphQLType(name string) bool { return name == "ISO8601DateTime" }

func (day) ImplementsGraphQLType(name string) bool { return name == "ISO8601Date" }

func (anyJSON) ImplementsGraphQLType(name string) bool { return name == "JSON" }

func (*moment) UnmarshalGraphQL(any) error { return errNoArgument }

func (*day) UnmarshalGraphQL(any) error { return errNoArgument }

func (*anyJSON) UnmarshalGraphQL(any) error { return errNoArgument }

func (m moment) MarshalJSON() ([]byte, error) { return json.Marshal(m.UTC().Format(time.RFC3339)) }
