package obs

import (
	"runtime"
	"runtime/debug"
	"strconv"
)

// Version says what was built from which source.
type Version struct {
	Version  string `json:"version"`  // of the module: a tag, or a pseudo-version of the commit
	Revision string `json:"revision"` // commit, empty if built without one
	Time     string `json:"time"`     // of the commit, RFC 3339
	Modified bool   `json:"modified"` // the tree had changes beside the commit
	Go       string `json:"go"`
}

// ReadVersion returns the version of the running program, from what the Go
// linker recorded.
func ReadVersion() Version {
	v := Version{Version: "(devel)", Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

// String returns the version in one line.
func (v Version) String() string {
	text := v.Version + " (" + v.Go
	if v.Revision != "" {
		text += ", commit " + v.Revision
	}
	if v.Modified {
		text += ", modified"
	}
	return text + ")"
}

// metric returns the name of the build_info gauge with its labels.
func (v Version) metric() string {
	return Name("kvatlas_build_info", "version", v.Version, "revision", v.Revision,
		"modified", strconv.FormatBool(v.Modified), "go", v.Go)
}
