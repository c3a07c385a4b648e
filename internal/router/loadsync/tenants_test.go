package loadsync

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/router/quota"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// Routers hold one limit together; whose server is gone keeps to its part.
func TestTenantsOverNATS(t *testing.T) {
	n := start(t, t.TempDir(), 1, space)
	l := quota.Limit{Requests: 10, Per: time.Hour}
	var tables []*quota.Table
	var links []*Tenants
	for id := range uint64(3) {
		table := quota.NewTable(10)
		x, err := OpenTenants(TenantsConfig{Conn: n.broker.Conn(), Namespace: "ns", Table: table, Log: slog.New(slog.DiscardHandler),
			Quota: quota.Config{ID: id + 1, Every: 5 * time.Millisecond, Beat: 20 * time.Millisecond, Silent: time.Minute, Forget: time.Hour}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = x.Close() })
		tables, links = append(tables, table), append(links, x)
	}
	synced := func(others int) {
		t.Helper()
		waittest.Until(t, func() error {
			for i, x := range tables[:others+1] {
				if s := x.Stats(); s.Synced != others || s.Known != others {
					return fmt.Errorf("router %d: %+v", i, s)
				}
			}
			return nil
		})
	}
	synced(2)
	for i := range 10 {
		if d := tables[i%2].Take(time.Now(), "a", l, 0); d.Refused != "" && i < 5 {
			t.Fatalf("request %d: %+v", i, d)
		}
	}
	waittest.Until(t, func() error {
		for i, x := range tables {
			if d := x.Take(time.Now(), "a", l, 0); d.Refused == "" {
				return fmt.Errorf("router %d: %+v", i, d)
			}
		}
		return nil
	})
	if err := links[2].Close(); err != nil {
		t.Fatal(err)
	}
	synced(1)
	if err := n.broker.Close(); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, func() error {
		for i, x := range tables[:2] {
			if s := x.Stats(); s.Part != 0.5 {
				return fmt.Errorf("router %d: %+v", i, s)
			}
		}
		return nil
	})
}
