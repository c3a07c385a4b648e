package quota

import (
	"strconv"
	"testing"
	"time"
)

// Who misses one of the messages in which another tells all of its accounts, or comes in
// the middle of them, does not take the others for all.
func TestAllAccountsAreToldInManyMessages(t *testing.T) {
	const tenants = 4096
	l := Limit{Requests: 1, Per: time.Hour}
	for missed := range 3 {
		now := time.Unix(1e9, 0)
		from, to := NewTable(tenants), NewTable(tenants)
		from.Join(hubConfig(0))
		to.Join(hubConfig(1))
		for i := range tenants {
			from.Take(now, strconv.Itoa(i), l, 0)
		}
		from.Tick(now, true) // nobody listens yet
		to.Tick(now, true)
		from.others.wanted = true
		for range 10 {
			now = now.Add(time.Second)
			told := from.Tick(now, true)
			if missed >= 0 && len(told) < 3 {
				t.Fatalf("%d messages: that says nothing", len(told))
			}
			for i, text := range told {
				if i == missed {
					continue
				}
				if err := to.Receive(now, text); err != nil {
					t.Fatal(err)
				}
			}
			missed = -1
			for _, text := range to.Tick(now, true) {
				if err := from.Receive(now, text); err != nil {
					t.Fatal(err)
				}
			}
		}
		unknown := 0
		for i := range tenants {
			if to.Take(now, strconv.Itoa(i), l, 0).Refused == "" {
				unknown++
			}
		}
		if s := to.Stats(); unknown > 0 || s.Synced != 1 {
			t.Errorf("what %d of %d tenants used is not known: %+v", unknown, tenants, s)
		}
	}
}
