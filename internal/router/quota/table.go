package quota

import (
	"sync"
	"time"
)

// Table is the accounts of tenants. It is safe for concurrent use.
type Table struct {
	limit int

	mu       sync.Mutex
	accounts map[string]*Account
	others   Account   // of tenants beyond the limit
	swept    time.Time // when those that owe nothing were looked for
}

// sweepEvery is how often they are, at most: while there are too many tenants, each
// request of one beyond the limit would look at all others.
const sweepEvery = time.Second

// NewTable returns a Table that knows so many tenants apart.
func NewTable(limit int) *Table { return &Table{limit: limit, accounts: make(map[string]*Account)} }

// Take takes a request of the tenant, if its limits allow it.
func (t *Table) Take(now time.Time, tenant string, l Limit, tokens int64) Decision {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.of(now, tenant).Take(now, l, tokens)
}

// Settle takes what the request has used beyond that.
func (t *Table) Settle(now time.Time, tenant string, l Limit, tokens int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of(now, tenant).Settle(now, l, tokens)
}

// of returns the tenant's account. One that owes nothing is as good as none, and makes
// room within sweepEvery.
func (t *Table) of(now time.Time, tenant string) *Account {
	a := t.accounts[tenant]
	if a != nil {
		return a
	}
	if len(t.accounts) >= t.limit && now.Sub(t.swept) >= sweepEvery {
		t.swept = now
		for name, a := range t.accounts {
			if a.idle(now) {
				delete(t.accounts, name)
			}
		}
	}
	if len(t.accounts) >= t.limit {
		return &t.others
	}
	a = new(Account)
	t.accounts[tenant] = a
	return a
}
