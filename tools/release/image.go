package main

import (
	"crypto/sha256"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// descriptor names a blob of the image's directory (OCI image specification 1.1).
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Variant      string `json:"variant,omitempty"`
}

const (
	user  = 65532
	oci   = "application/vnd.oci.image."
	state = "/var/lib/kvatlas"
)

// image writes the image, from nothing but the programs, as an OCI layout with an index
// of the Linux targets: deploy/Dockerfile without a container runtime.
func (r *release) image() error {
	about := map[string]string{
		"org.opencontainers.image.title":       "kvatlas",
		"org.opencontainers.image.description": "Which inference worker has the KV cache of which prefix, and routing by it",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.source":      "https://github.com/kvatlas/kvatlas",
		"org.opencontainers.image.version":     r.version,
	}
	var manifests []descriptor
	for _, target := range r.targets {
		arch, linux := strings.CutPrefix(target, "linux/")
		if !linux {
			continue
		}
		p := platform{Architecture: arch, OS: "linux"}
		if arch == "arm" {
			p.Variant = "v7"
		}
		m, err := r.oneImage(target, p, about)
		if err != nil {
			return err
		}
		manifests = append(manifests, m)
	}
	if len(manifests) == 0 {
		return nil
	}
	all, err := r.blob(oci+"index.v1+json", map[string]any{"schemaVersion": 2, "mediaType": oci + "index.v1+json", "manifests": manifests, "annotations": about})
	if err != nil {
		return err
	}
	all.Annotations = map[string]string{"org.opencontainers.image.ref.name": r.version}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": oci + "index.v1+json", "manifests": []descriptor{all}})
	if err != nil {
		return err
	}
	if err := r.write("image/index.json", index); err != nil {
		return err
	}
	return r.write("image/oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
}

func (r *release) oneImage(target string, p platform, labels map[string]string) (descriptor, error) {
	files, err := r.binaries(target, "")
	if err != nil {
		return descriptor{}, err
	}
	var roots []byte
	for root := range bundle.Roots() {
		roots = append(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})...)
	}
	for _, dir := range []string{"etc/", "etc/ssl/", "etc/ssl/certs/", "var/", "var/lib/"} {
		files = append(files, file{name: dir, mode: 0o755})
	}
	files = append(files,
		file{name: "tmp/", mode: 0o1777},
		file{name: strings.TrimPrefix(state, "/") + "/", mode: 0o700, user: user},
		file{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, data: roots},
		file{name: "etc/passwd", mode: 0o644, data: fmt.Appendf(nil, "kvatlas:x:%d:%d::%s:/nonexistent\n", user, user, state)},
		file{name: "etc/group", mode: 0o644, data: fmt.Appendf(nil, "kvatlas:x:%d:\n", user)})
	for _, f := range r.docs {
		if f.name == "LICENSE" || f.name == "THIRD_PARTY_NOTICES.txt" {
			f.name = "licenses/" + f.name
			files = append(files, f)
		}
	}
	files = append(files, file{name: "licenses/", mode: 0o755})
	plain, err := tarball(files, r.time)
	if err != nil {
		return descriptor{}, err
	}
	layer, err := packed(plain)
	if err != nil {
		return descriptor{}, err
	}
	at, err := r.blobBytes(oci+"layer.v1.tar+gzip", layer)
	if err != nil {
		return descriptor{}, err
	}
	created := r.time.Format("2006-01-02T15:04:05Z")
	config, err := r.blob(oci+"config.v1+json", map[string]any{
		"created": created, "architecture": p.Architecture, "os": p.OS, "variant": p.Variant,
		"config": map[string]any{
			"User": fmt.Sprintf("%d:%d", user, user), "Env": []string{"STATE_DIRECTORY=" + state, "TMPDIR=" + state}, "Entrypoint": []string{"/kvindexer"},
			"Volumes": map[string]any{state: struct{}{}}, "StopSignal": "SIGTERM", "Labels": labels,
			"ExposedPorts": map[string]any{"8090/tcp": struct{}{}, "8000/tcp": struct{}{}, "8092/tcp": struct{}{}},
		},
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(plain))}},
		"history": []any{map[string]any{"created": created, "created_by": "kvatlas release " + r.version}},
	})
	if err != nil {
		return descriptor{}, err
	}
	m, err := r.blob(oci+"manifest.v1+json", map[string]any{"schemaVersion": 2, "mediaType": oci + "manifest.v1+json", "config": config, "layers": []descriptor{at}})
	m.Platform = &p
	return m, err
}

// blob writes a value as JSON among the image's blobs.
func (r *release) blob(kind string, v any) (descriptor, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return descriptor{}, err
	}
	return r.blobBytes(kind, data)
}

func (r *release) blobBytes(kind string, data []byte) (descriptor, error) {
	sum := fmt.Sprintf("%x", sha256.Sum256(data))
	return descriptor{MediaType: kind, Digest: "sha256:" + sum, Size: len(data)}, r.write("image/blobs/sha256/"+sum, data)
}
