package testkit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// FilesInOrder fails t if the files of the package in dir (without its tests) use each other in a circle: then they
// can be read in no order. A file uses another one if it names something that is declared there: a function, type,
// variable, constant, method or field.
func FilesInOrder(t testing.TB, dir string) {
	t.Helper()
	uses := usesOfFiles(t, dir)
	for _, file := range slices.Sorted(maps.Keys(uses)) {
		var of []string
		for _, other := range slices.Sorted(maps.Keys(uses[file])) {
			of = append(of, fmt.Sprintf("%d of %s", len(uses[file][other]), other))
		}
		t.Logf("%-20s uses %s", file, cmp.Or(strings.Join(of, ", "), "no other file"))
	}
	circle := circleOf(uses)
	if circle == nil {
		return
	}
	var steps []string
	for i, file := range circle {
		next := circle[(i+1)%len(circle)]
		names := slices.Sorted(maps.Keys(uses[file][next]))
		steps = append(steps, fmt.Sprintf("%s uses %s of %s", file, strings.Join(names, ", "), next))
	}
	t.Errorf("the files of %s use each other in a circle:\n\t%s", dir, strings.Join(steps, "\n\t"))
}

// usesOfFiles returns, for each file, the names that it uses of each other file.
func usesOfFiles(t testing.TB, dir string) map[string]map[string]map[string]bool {
	t.Helper()
	// The compiler has written down the types of all imported packages, go list says where.
	list := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Export,GoFiles,DepOnly", ".")
	list.Dir, list.Stderr = dir, os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	exports := make(map[string]string)
	var path string
	var names []string
	for decoder := json.NewDecoder(strings.NewReader(string(out))); decoder.More(); {
		var p struct {
			ImportPath, Export string
			GoFiles            []string
			DepOnly            bool
		}
		if err := decoder.Decode(&p); err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if !p.DepOnly {
			path, names = p.ImportPath, p.GoFiles
		}
	}

	fset := token.NewFileSet()
	uses := make(map[string]map[string]map[string]bool)
	var files []*ast.File
	for _, name := range names {
		file, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
		uses[name] = make(map[string]map[string]bool)
	}
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})}
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object)}
	pkg, err := config.Check(path, fset, files, info)
	if err != nil {
		t.Fatal(err)
	}
	fileOf := func(pos token.Pos) string { return filepath.Base(fset.Position(pos).Filename) }
	for id, used := range info.Uses {
		if used.Pkg() != pkg {
			continue
		}
		from, to := fileOf(id.Pos()), fileOf(used.Pos())
		if _, isImport := used.(*types.PkgName); isImport || from == to {
			continue
		}
		if uses[from][to] == nil {
			uses[from][to] = make(map[string]bool)
		}
		uses[from][to][used.Name()] = true
	}
	return uses
}

// circleOf returns the shortest circle: each of its files uses the next one, and the last one the first.
func circleOf(uses map[string]map[string]map[string]bool) (shortest []string) {
	for _, start := range slices.Sorted(maps.Keys(uses)) {
		cameFrom := make(map[string]string)
		for queue := []string{start}; len(queue) > 0; queue = queue[1:] {
			for _, next := range slices.Sorted(maps.Keys(uses[queue[0]])) {
				if _, seen := cameFrom[next]; !seen {
					cameFrom[next] = queue[0]
					queue = append(queue, next)
				}
			}
		}
		if _, returns := cameFrom[start]; !returns {
			continue
		}
		circle := []string{start}
		for file := cameFrom[start]; file != start; file = cameFrom[file] {
			circle = append(circle, file)
		}
		slices.Reverse(circle[1:])
		if shortest == nil || len(circle) < len(shortest) {
			shortest = circle
		}
	}
	return shortest
}
