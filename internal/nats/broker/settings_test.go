package broker

import (
	"testing"

	"github.com/kvatlas/kvatlas/internal/program/conf"
)

func TestDefaultDataDir(t *testing.T) {
	for want, env := range map[string]map[string]string{
		"/var/lib/kvatlas":             {"STATE_DIRECTORY": "/var/lib/kvatlas:/var/lib/other", "XDG_STATE_HOME": "/x", "HOME": "/h"},
		"/x/kvatlas":                   {"XDG_STATE_HOME": "/x", "HOME": "/h"},
		"/h/.local/state/kvatlas":      {"XDG_STATE_HOME": "relative", "HOME": "/h"},
		".kvatlas":                     {},
		"/home/a/.local/state/kvatlas": {"HOME": "/home/a"},
	} {
		if got := DefaultDataDir(func(name string) string { return env[name] }); got != want {
			t.Errorf("%v: got %s, want %s", env, got, want)
		}
	}
}

func TestSettingsFillTheConfig(t *testing.T) {
	var c Config
	set := conf.New("test", "A test.")
	c.Declare(set)
	if _, err := set.Run([]string{"--data-dir=/d", "--nats-port=4222", "--nats-max-store=1GiB"}, nil, nil); err != nil {
		t.Fatal(err)
	}
	if want := (Config{URL: Embedded, DataDir: "/d", Port: 4222, MaxStore: 1 << 30, Sync: defaultSync}); c != want {
		t.Errorf("got %+v, want %+v", c, want)
	}
}
