package testkit

import (
	"bytes"
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

// FilesInOrder fails t if the files of one of the packages in these folders (without its tests) use each other in a
// circle: then they can be read in no order. A file uses another one if it names something that is declared there: a
// function, type, variable, constant, method or field. A folder is written as "." or "../other".
func FilesInOrder(t testing.TB, folders ...string) {
	t.Helper()
	type listed struct {
		ImportPath, Dir, Export string
		GoFiles                 []string
		DepOnly                 bool
	}
	// The compiler has written down the types of all imported packages; go list says where.
	list := exec.Command("go", append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,DepOnly"}, folders...)...)
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	exports := make(map[string]string)
	var packages []listed
	for decoder := json.NewDecoder(bytes.NewReader(out)); decoder.More(); {
		var p listed
		if err := decoder.Decode(&p); err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if !p.DepOnly {
			packages = append(packages, p)
		}
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, p := range packages {
		uses, err := usesOfFiles(fset, imports, p.ImportPath, p.Dir, p.GoFiles)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range slices.Sorted(maps.Keys(uses)) {
			var of []string
			for _, other := range slices.Sorted(maps.Keys(uses[file])) {
				of = append(of, fmt.Sprintf("%d of %s", len(uses[file][other]), other))
			}
			t.Logf("%s: %-20s uses %s", p.ImportPath, file, cmp.Or(strings.Join(of, ", "), "no other file"))
		}
		circle := circleOf(uses)
		for i, file := range circle {
			next := circle[(i+1)%len(circle)]
			names := slices.Sorted(maps.Keys(uses[file][next]))
			t.Errorf("%s: a circle of files: %s uses %s of %s", p.ImportPath, file, strings.Join(names, ", "), next)
		}
	}
}

// usesOfFiles returns, for each file of a package, the names that it uses of each other file.
func usesOfFiles(fset *token.FileSet, imports types.Importer, path, dir string, names []string) (map[string]map[string]map[string]bool, error) {
	uses := make(map[string]map[string]map[string]bool)
	var files []*ast.File
	for _, name := range names {
		file, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
		uses[name] = make(map[string]map[string]bool)
	}
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object)}
	pkg, err := (&types.Config{Importer: imports}).Check(path, fset, files, info)
	if err != nil {
		return nil, err
	}
	fileOf := func(pos token.Pos) string { return filepath.Base(fset.Position(pos).Filename) }
	for id, used := range info.Uses {
		from, to := fileOf(id.Pos()), fileOf(used.Pos())
		if _, isImport := used.(*types.PkgName); isImport || used.Pkg() != pkg || from == to {
			continue
		}
		if uses[from][to] == nil {
			uses[from][to] = make(map[string]bool)
		}
		uses[from][to][used.Name()] = true
	}
	return uses, nil
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
