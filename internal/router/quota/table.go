package quota

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/zeebo/xxh3"
)

// Table is the accounts of tenants. It is safe for concurrent use.
type Table struct {
	limit int

	mu       sync.Mutex
	accounts map[string]*Account // by tenant, and by lane
	lanes    int                 // of these
	swept    time.Time           // when those that owe nothing were looked for
	shared   uint64
	others   others
}

const (
	// sweepEvery is how often they are, at most: while there are too many tenants, each
	// request of one beyond the limit would look at all others.
	sweepEvery = time.Second
	// lanes are the accounts that tenants beyond the limit share. A tenant's is always
	// the same, at every router: who uses much is met there by one of so many of the
	// others only.
	lanes = 1024
	// lanePrefix begins a lane's name, which no tenant has.
	lanePrefix = "\x00"
)

// NewTable returns a Table that knows so many tenants apart.
func NewTable(limit int) *Table { return &Table{limit: limit, accounts: make(map[string]*Account)} }

// Take takes a request of the tenant, if its limits allow it.
func (t *Table) Take(now time.Time, tenant string, l Limit, tokens int64) Decision {
	t.mu.Lock()
	defer t.mu.Unlock()
	a, shared := t.of(now, tenant)
	if shared {
		t.shared++
	}
	return a.Take(now, t.others.part(l), tokens)
}

// Settle takes what the request has used beyond that.
func (t *Table) Settle(now time.Time, tenant string, l Limit, tokens int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a, _ := t.of(now, tenant)
	a.Settle(now, t.others.part(l), tokens)
}

// Accounts returns how many tenants have accounts of their own, and how many requests
// were charged to one that tenants share.
func (t *Table) Accounts() (own int, shared uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.accounts) - t.lanes, t.shared
}

// of returns the account of a tenant, or of a lane, and whether it is shared. One that
// owes nothing is as good as none, and makes room within sweepEvery.
func (t *Table) of(now time.Time, name string) (a *Account, shared bool) {
	lane := strings.HasPrefix(name, lanePrefix)
	if a = t.accounts[name]; a != nil {
		return a, lane
	}
	if len(t.accounts)-t.lanes >= t.limit && now.Sub(t.swept) >= sweepEvery {
		t.sweep(now)
	}
	switch {
	case lane:
	case len(t.accounts)-t.lanes >= t.limit:
		return t.of(now, laneOf(name))
	default:
		name = strings.Clone(name)
	}
	a = new(Account)
	t.accounts[name] = a
	if lane {
		t.lanes++
	}
	return a, lane
}

func laneOf(name string) string { return lanePrefix + strconv.Itoa(int(xxh3.HashString(name)%lanes)) }

// isLane reports whether the name is a lane's.
func isLane(name string) bool {
	n, err := strconv.Atoi(strings.TrimPrefix(name, lanePrefix))
	return err == nil && n >= 0 && n < lanes && name == lanePrefix+strconv.Itoa(n)
}

func (t *Table) sweep(now time.Time) {
	t.swept = now
	for name, a := range t.accounts {
		if a.idle(now) {
			delete(t.accounts, name)
			if strings.HasPrefix(name, lanePrefix) {
				t.lanes--
			}
		}
	}
}
