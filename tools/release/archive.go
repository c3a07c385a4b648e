package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// file is one of an archive, or a directory if its name ends with a slash.
type file struct {
	name string
	mode int64
	data []byte
	user int // and group
}

// tarball writes the files as a tar, sorted, of one time and without names of owners.
func tarball(files []file, at time.Time) ([]byte, error) {
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), Uid: f.user, Gid: f.user, ModTime: at, Typeflag: tar.TypeReg}
		if strings.HasSuffix(f.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// packed is gzip without a name and a time.
func packed(data []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	err = w.Close()
	return out.Bytes(), err
}

func zipped(files []file, at time.Time) ([]byte, error) {
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, f := range files {
		h := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: at}
		h.SetMode(os.FileMode(f.mode))
		to, err := w.CreateHeader(h)
		if err != nil {
			return nil, err
		}
		if _, err := to.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// binaries are the programs of a target, below a directory.
func (r *release) binaries(target, dir string) ([]file, error) {
	var files []file
	for _, p := range programs {
		path := r.program(target, p)
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		files = append(files, file{name: dir + filepath.Base(path), mode: 0o755, data: data})
	}
	return files, nil
}

// archives writes an archive for each target: programs, what describes them, and
// licences; for Linux the units, too.
func (r *release) archives() error {
	for _, target := range r.targets {
		dir := "kvatlas_" + r.bare() + "_" + strings.ReplaceAll(target, "/", "_")
		files, err := r.binaries(target, dir+"/")
		if err != nil {
			return err
		}
		for _, f := range r.docs {
			if strings.HasPrefix(f.name, "systemd/") && !strings.HasPrefix(target, "linux/") {
				continue
			}
			f.name = dir + "/" + f.name
			files = append(files, f)
		}
		if strings.HasPrefix(target, "windows/") {
			data, err := zipped(files, r.time)
			if err != nil {
				return err
			}
			if err := r.write(dir+".zip", data); err != nil {
				return err
			}
			continue
		}
		if err := r.writeTar(dir+".tar.gz", files); err != nil {
			return err
		}
	}
	return nil
}

// chart writes the chart as a package, with the release as its version.
func (r *release) chart() error {
	root := filepath.Join(r.src, "deploy/helm/kvatlas")
	var files []file
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if name == "Chart.yaml" {
			var lines []string
			for line := range strings.Lines(string(data)) {
				switch key, _, _ := strings.Cut(line, ":"); key {
				case "version":
					line = "version: " + r.bare() + "\n"
				case "appVersion":
					line = fmt.Sprintf("appVersion: %q\n", r.version)
				}
				lines = append(lines, line)
			}
			data = []byte(strings.Join(lines, ""))
		}
		files = append(files, file{name: "kvatlas/" + filepath.ToSlash(name), mode: 0o644, data: data})
		return nil
	})
	if err != nil {
		return err
	}
	return r.writeTar("kvatlas-chart-"+r.bare()+".tgz", files)
}

func (r *release) writeTar(name string, files []file) error {
	data, err := tarball(files, r.time)
	if err != nil {
		return err
	}
	if data, err = packed(data); err != nil {
		return err
	}
	return r.write(name, data)
}

func (r *release) write(name string, data []byte) error {
	path := filepath.Join(r.out, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

// checksums writes SHA256SUMS of all that was written, as sha256sum reads it.
func (r *release) checksums() error {
	var lines strings.Builder
	err := filepath.WalkDir(r.out, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(r.out, path)
		fmt.Fprintf(&lines, "%x  %s\n", sha256.Sum256(data), filepath.ToSlash(name))
		return err
	})
	if err != nil {
		return err
	}
	return r.write("SHA256SUMS", []byte(lines.String()))
}
