package route

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/route/breaker"
)

// Settings are what an operator chooses for a Router. Start from
// DefaultSettings: the zero value turns tracking and weights off.
type Settings struct {
	// Mode names the policy; see Modes. Default auto, which predicts times and
	// needs no weight.
	Mode string
	// Objective says what mode auto keeps low; see Objectives. Default balanced.
	Objective string
	// Targets are the times that requests are to keep, in mode auto: then as many as can be
	// do, whatever the Objective. Default none.
	Targets Targets
	// Models are the objectives and targets of models that have others, by the name in Config.Space.
	Models map[string]Aims
	// OverlapWeight is what a block to be computed costs, in blocks in use, for
	// the kv policy. Default 1; 0 is pure load balancing, without the index, for
	// the auto policy too.
	OverlapWeight float64
	// PrefillLoadScale is the same for the dynamo policy. Default 1.
	PrefillLoadScale float64
	// Temperature spreads choices: 0, the default, takes the lowest cost;
	// above it the chance of a rank falls with its cost, more evenly the
	// higher. The costs of the ranks are first scaled to 0 … 1.
	Temperature float64
	// TierCredits is what a cached block saves of a computed one, by the tier
	// that it is on. Default device 1, host 0.75, disk 0.25, external 0.
	TierCredits [event.NumTiers]float64
	// PoolCredit is that of external storage for workers that read from a pool (Worker.Pooled),
	// where TierCredits has no more. Default 0.5.
	PoolCredit float64
	// StaleCredit is the part of a stale rank's depths that counts: of one of which the
	// index lacks events. Default 0.5.
	StaleCredit float64
	// Doubt lets what the index has of a rank count for the part that its engine finds, where
	// that contradicts the index and nothing explains it, and has the rank read anew. Default on.
	Doubt bool
	// DeviceRatio is how many times faster than a CPU worker another is taken
	// to be by device-aware-weighted. Default 8.
	DeviceRatio float64

	// TrackActiveBlocks counts the blocks that live requests occupy. Default on;
	// off for fleets that only prefill.
	TrackActiveBlocks bool
	// AssumeKVReuse counts a block that live requests of a rank share once.
	// Default on.
	AssumeKVReuse bool
	// TrackOutputBlocks counts the blocks that generation fills. Default off.
	TrackOutputBlocks bool
	// OutputDecay lets them count less towards the expected end of their
	// request. Default off; needs TrackOutputBlocks.
	OutputDecay bool

	// Busy says from when on a worker gets no more requests. Default never.
	Busy Thresholds
	// Lease ends a booking that has made no progress for so long, but for those of requests that are
	// Watched. Default 5 minutes; 0 never.
	Lease time.Duration
	// ReportLifetime is how long a load that an engine reported counts. Default
	// 30 seconds.
	ReportLifetime time.Duration
	// Breaker says when a worker is left out for what became of its requests, and
	// OverdueAfter how long it may give nothing while a request that is Watched
	// waits, at least: eight times the predicted time if that is longer. Default 20
	// seconds; 0 is for ever.
	Breaker      breaker.Config
	OverdueAfter time.Duration
	// LeftOutShare is the part of the workers that may be left out so at
	// once. Default 0.67: of one worker none, of two one, of three two. Of prefill workers
	// all may be, as long as there are decode workers: they do all then; 0 is none of any.
	LeftOutShare float64
	// Seed starts the random numbers. Default 1.
	Seed uint64
}

// Aims are what a model has of its own; what is empty or nil is that of all.
type Aims struct {
	Objective         string
	FirstToken, Token *time.Duration // of Targets
}

// Of returns the settings for a model.
func (s *Settings) Of(model string) Settings {
	own := *s
	own.Models = nil
	a := s.Models[model]
	if a.Objective != "" {
		own.Objective = a.Objective
	}
	if a.FirstToken != nil {
		own.Targets.FirstToken = *a.FirstToken
	}
	if a.Token != nil {
		own.Targets.Token = *a.Token
	}
	return own
}

// Objectives returns what Settings.Objective may be: ttft for first tokens, e2e for the ends
// of requests, balanced for both. Empty is balanced.
func Objectives() []string { return []string{"ttft", "balanced", "e2e"} }

// credit is what a block on the tier saves of a computed one, for a worker that reads from a pool or not.
func (s *Settings) credit(t event.Tier, pooled bool) float64 {
	if t == event.External && pooled {
		return max(s.TierCredits[t], s.PoolCredit)
	}
	return s.TierCredits[t]
}

// decodeShare is how much a ms of decoding counts of a ms before the first token. Decoding
// takes most of a request's time, but its ms are spread over all tokens, and readers wait for
// the first one. With tail, those of requests with long prompts count more, as these end last, and all of them never
// more than computing two such prompts; without, all ms count alike, which ends
// requests soonest in the mean.
func (s *Settings) decodeShare() (share float64, tail bool) {
	switch s.Objective {
	case "ttft":
		return 0.015, true
	case "e2e":
		return 0.12, false
	}
	return 0.04, true
}

// DefaultSettings returns the settings of a Router that nobody has tuned.
func DefaultSettings() Settings {
	return Settings{
		Mode:              "auto",
		Objective:         "balanced",
		OverlapWeight:     1,
		PrefillLoadScale:  1,
		TierCredits:       [event.NumTiers]float64{1, 0.75, 0.25, 0},
		PoolCredit:        0.5,
		StaleCredit:       0.5,
		Doubt:             true,
		DeviceRatio:       8,
		TrackActiveBlocks: true,
		AssumeKVReuse:     true,
		Lease:             5 * time.Minute,
		ReportLifetime:    30 * time.Second,
		Breaker:           breaker.Default(),
		OverdueAfter:      20 * time.Second,
		LeftOutShare:      0.67,
		Seed:              1,
	}
}

// WeighsCache reports whether choices go by what is cached: an index is then worth
// keeping. A request's own weight may need it where this says no.
func (s *Settings) WeighsCache() bool {
	switch s.Mode {
	case "kv", "auto":
		return s.OverlapWeight > 0
	case "dynamo":
		return s.PrefillLoadScale > 0
	case "prefill-x-batch":
		return true
	}
	return false
}

// WeighsLoad reports whether choices go by what the workers have to do: who asks for turns,
// or for chance, wants these.
func (s *Settings) WeighsLoad() bool {
	return s.Mode != "round-robin" && s.Mode != "random" && s.Mode != "direct"
}

// Check returns an error that wraps ErrSettings and names the first setting
// that is out of range.
func (s *Settings) Check() error {
	if _, err := newPolicy(s.Mode); err != nil {
		return err
	}
	if s.Objective != "" && !slices.Contains(Objectives(), s.Objective) {
		return fmt.Errorf("%w: objective %q, give one of %v", ErrSettings, s.Objective, Objectives())
	}
	if err := s.Targets.Check(); err != nil {
		return err
	}
	for model := range s.Models {
		own := s.Of(model)
		if err := own.Check(); err != nil {
			return fmt.Errorf("model %s: %w", model, err)
		}
	}
	for _, n := range []struct {
		name  string
		value float64
	}{
		{"overlap weight", s.OverlapWeight},
		{"prefill load scale", s.PrefillLoadScale},
		{"temperature", s.Temperature},
	} {
		if err := checkNumber(n.name, n.value); err != nil {
			return err
		}
	}
	if s.DeviceRatio <= 0 || math.IsInf(s.DeviceRatio, 0) || math.IsNaN(s.DeviceRatio) {
		return fmt.Errorf("%w: device ratio %v, give a number above 0", ErrSettings, s.DeviceRatio)
	}
	for t, c := range s.TierCredits {
		if !(c >= 0 && c <= 1) {
			return fmt.Errorf("%w: credit %v of tier %v, give 0 to 1", ErrSettings, c, event.Tier(t))
		}
	}
	if !(s.PoolCredit >= 0 && s.PoolCredit <= 1) {
		return fmt.Errorf("%w: credit %v of pools, give 0 to 1", ErrSettings, s.PoolCredit)
	}
	if !(s.StaleCredit >= 0 && s.StaleCredit <= 1) {
		return fmt.Errorf("%w: credit %v of stale ranks, give 0 to 1", ErrSettings, s.StaleCredit)
	}
	if err := s.Breaker.Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrSettings, err)
	}
	if s.OverdueAfter < 0 || !(s.LeftOutShare >= 0 && s.LeftOutShare <= 1) {
		return fmt.Errorf("%w: overdue after %v, at most %v left out: give a time from 0 on and a part from 0 to 1", ErrSettings, s.OverdueAfter, s.LeftOutShare)
	}
	if s.Lease < 0 || s.ReportLifetime < 0 {
		return fmt.Errorf("%w: a lease or lifetime is below 0", ErrSettings)
	}
	return s.Busy.Check()
}

func checkNumber(name string, v float64) error {
	if !(v >= 0) || math.IsInf(v, 1) {
		return fmt.Errorf("%w: %s %v, give a number from 0 on", ErrSettings, name, v)
	}
	return nil
}

// Thresholds say from when on a worker is busy. A nil one is not applied. The
// JSON names are those of Dynamo's /busy_threshold.
type Thresholds struct {
	// DecodeFraction: more blocks in use than this part (0 … 1) of the rank's
	// blocks. It needs Worker.TotalBlocks.
	DecodeFraction *float64 `json:"active_decode_blocks_threshold"`
	// PrefillTokens: more prompt tokens to compute than this.
	PrefillTokens *int `json:"active_prefill_tokens_threshold"`
	// PrefillFraction: more of them than this part of the tokens that the
	// engine batches at most; it may exceed 1. It needs
	// Worker.MaxBatchedTokens.
	PrefillFraction *float64 `json:"active_prefill_tokens_threshold_frac"`
}

// Check returns an error that wraps ErrSettings for a value out of range.
func (t Thresholds) Check() error {
	if f := t.DecodeFraction; f != nil && !(*f >= 0 && *f <= 1) {
		return fmt.Errorf("%w: busy threshold of decode blocks %v, give a part from 0 to 1", ErrSettings, *f)
	}
	if n := t.PrefillTokens; n != nil && *n < 0 {
		return fmt.Errorf("%w: busy threshold of %d prefill tokens, give 0 or more", ErrSettings, *n)
	}
	if f := t.PrefillFraction; f != nil {
		return checkNumber("busy threshold of prefill tokens", *f)
	}
	return nil
}

// Merge returns t with the thresholds that change sets.
func (t Thresholds) Merge(change Thresholds) Thresholds {
	if change.DecodeFraction != nil {
		t.DecodeFraction = new(*change.DecodeFraction)
	}
	if change.PrefillTokens != nil {
		t.PrefillTokens = new(*change.PrefillTokens)
	}
	if change.PrefillFraction != nil {
		t.PrefillFraction = new(*change.PrefillFraction)
	}
	return t
}
