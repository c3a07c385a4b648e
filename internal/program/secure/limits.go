package secure

import (
	"errors"
	"fmt"
	"time"
)

// Limits are what the requests of one account may use, and how they stand among others'.
type Limits struct {
	Requests int64         `yaml:"requests"` // in Per; 0: without limit
	Tokens   int64         `yaml:"tokens"`   // likewise, of prompts and answers
	Per      time.Duration `yaml:"per"`      // a minute unless said
	Weight   float64       `yaml:"weight"`   // its share where requests wait; 1 unless said
	Priority int           `yaml:"priority"` // higher goes first
}

// OtherTenants is the entry of limits that counts for each account without one.
const OtherTenants = "*"

func (l *Limits) check() error {
	if l == nil {
		return errors.New("say what its limits are")
	}
	if l.Per == 0 {
		l.Per = time.Minute
	}
	if l.Weight == 0 {
		l.Weight = 1
	}
	switch {
	case l.Requests < 0 || l.Tokens < 0:
		return errors.New("requests and tokens are 0, which is without limit, or more")
	case l.Per < time.Second || l.Per > 24*time.Hour:
		return fmt.Errorf("per: %v is not from 1s to 24h", l.Per)
	case !(l.Weight >= 0.001 && l.Weight <= 1000):
		return fmt.Errorf("weight: %v is not from 0.001 to 1000", l.Weight)
	case l.Priority < -100 || l.Priority > 100:
		return fmt.Errorf("priority: %d is not from -100 to 100", l.Priority)
	}
	return nil
}

// of returns the account's limits; nil for none.
func (f *tokens) of(account string) *Limits {
	if l := f.limits[account]; l != nil {
		return l
	}
	return f.limits[OtherTenants]
}

// Limits returns those of an account; nil for none.
func (a *Access) Limits(account string) *Limits {
	if a == nil || a.tokens == nil {
		return nil
	}
	return a.tokens.Get().of(account)
}
