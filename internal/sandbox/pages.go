package sandbox

import (
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// pageArgs are the arguments of a list.
type pageArgs struct {
	First, Last                 *int32
	After, Before, Filter, Sort *string
}

type connection[T any] struct {
	Nodes      *[]*T
	Edges      *[]*edge[T]
	PageInfo   pageInfo
	TotalCount int32
}

type edge[T any] struct {
	Node   *T
	Cursor string
}

type pageInfo struct {
	HasNextPage, HasPreviousPage bool
	StartCursor, EndCursor       *string
}

// maxPage is the largest page. The service advises no more; what it does with more is not known.
const maxPage = 100

// sorts are the orders that the sandbox knows: its lists are in the order in which their nodes were made.
var sorts = regexp.MustCompile(`(?i)^(?:id|created_at)(?: (asc|desc))?$`)

// page returns a part of a list whose oldest node comes first. A cursor is a position, so a node that is added at the
// front moves the pages behind it: a program that reads on meets a node twice, and misses none.
func page[T any](oldestFirst []*T, a pageArgs) (*connection[T], error) {
	list := oldestFirst
	if a.Sort != nil && *a.Sort != "" {
		order := sorts.FindStringSubmatch(*a.Sort)
		if order == nil {
			return nil, fmt.Errorf("the sandbox cannot sort by %q: use created_at or id, with ASC or DESC", *a.Sort)
		}
		if strings.EqualFold(order[1], "desc") {
			list = slices.Clone(list)
			slices.Reverse(list)
		}
	}
	if a.Filter != nil && *a.Filter != "" {
		return nil, errors.New("the sandbox filters only accounts: what a filter may say here is not published")
	}
	if a.First != nil && *a.First < 0 || a.Last != nil && *a.Last < 0 {
		return nil, errors.New("first and last must not be negative")
	}
	begin, end := 0, len(list)
	for cursor, bound := range map[*string]*int{a.After: &begin, a.Before: &end} {
		if cursor == nil {
			continue
		}
		text, err := base64.RawURLEncoding.DecodeString(*cursor)
		n, invalid := strconv.Atoi(string(text))
		if err != nil || invalid != nil || n < 0 {
			return nil, fmt.Errorf("invalid cursor: %q", *cursor)
		}
		*bound = min(n, len(list))
	}
	if a.Before != nil {
		end--
	}
	end = max(begin, end)
	if a.Last != nil && a.First == nil {
		begin = max(begin, end-min(int(*a.Last), maxPage))
	}
	size := maxPage
	if a.First != nil {
		size = min(int(*a.First), maxPage)
	}
	end = min(end, begin+size)

	nodes, edges := slices.Clone(list[begin:end]), []*edge[T]{}
	for i, node := range nodes {
		cursor := base64.RawURLEncoding.EncodeToString([]byte(strconv.Itoa(begin + i + 1)))
		edges = append(edges, &edge[T]{node, cursor})
	}
	c := &connection[T]{&nodes, &edges, pageInfo{end < len(list), begin > 0, nil, nil}, int32(len(list))}
	if len(edges) > 0 {
		c.PageInfo.StartCursor, c.PageInfo.EndCursor = &edges[0].Cursor, &edges[len(edges)-1].Cursor
	}
	return c, nil
}
