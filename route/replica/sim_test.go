package replica

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

// network is a simulated one in virtual time.
type network struct {
	rng   *rand.Rand
	now   time.Time
	queue flights
	nodes map[uint64]*node
	drop  float64 // chance that a message is lost
	dup   float64 // that it comes twice
	delay int     // at most, in milliseconds, each anew: messages overtake
	sent  int
}

type node struct {
	net      *network
	id       uint64
	router   *route.Router
	replicas *Replicas
	cut      bool // neither sends nor receives
	mute     bool // only receives
	live     []string
	next     int
}

type flight struct {
	at    time.Time
	order int
	to    uint64
	msg   []byte
}

type flights []flight

func (f flights) Len() int { return len(f) }
func (f flights) Less(i, j int) bool {
	return f[i].at.Before(f[j].at) || f[i].at.Equal(f[j].at) && f[i].order < f[j].order
}
func (f flights) Swap(i, j int) { f[i], f[j] = f[j], f[i] }
func (f *flights) Push(x any)   { *f = append(*f, x.(flight)) }
func (f *flights) Pop() any {
	x := (*f)[len(*f)-1]
	*f = (*f)[:len(*f)-1]
	return x
}

func (n *node) Publish(msg []byte) error {
	for _, id := range n.net.ids() { // a copy to the sender too, as NATS sends
		n.net.post(n, id, msg)
	}
	return nil
}

func (n *node) Send(to uint64, msg []byte) error {
	n.net.post(n, to, msg)
	return nil
}

func (net *network) ids() []uint64 {
	var ids []uint64
	for id := range net.nodes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (net *network) post(from *node, to uint64, msg []byte) {
	if from.cut || from.mute {
		return
	}
	copies := 1
	if net.rng.Float64() < net.dup {
		copies = 2
	}
	for range copies {
		if net.rng.Float64() >= net.drop {
			net.sent++
			at := net.now.Add(time.Duration(1+net.rng.IntN(net.delay)) * time.Millisecond)
			heap.Push(&net.queue, flight{at, net.sent, to, slices.Clone(msg)})
		}
	}
}

// run lets virtual time pass, calling step every 10 ms.
func (net *network) run(t *testing.T, d time.Duration, step func()) {
	t.Helper()
	for end := net.now.Add(d); net.now.Before(end); net.now = net.now.Add(10 * time.Millisecond) {
		for len(net.queue) > 0 && !net.queue[0].at.After(net.now) {
			f := heap.Pop(&net.queue).(flight)
			n := net.nodes[f.to]
			if n == nil || n.cut {
				continue
			}
			if err := n.replicas.Receive(f.msg); err != nil {
				t.Fatal(err)
			}
		}
		if step != nil {
			step()
		}
		for _, id := range net.ids() {
			n := net.nodes[id]
			n.router.Expire()
			if err := n.replicas.Tick(); err != nil {
				t.Fatal(err)
			}
			if err := n.replicas.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

const fleetWorkers = 4

func (net *network) join(t *testing.T, id uint64, change func(*Config)) *node {
	t.Helper()
	s := route.DefaultSettings()
	s.TrackOutputBlocks, s.Lease = true, time.Hour
	s.Seed = id
	n := &node{net: net, id: id}
	clock := func() time.Time { return net.now }
	var err error
	if n.router, err = route.New(route.Config{BlockSize: 4, Settings: s, ID: id, Now: clock}); err != nil {
		t.Fatal(err)
	}
	for w := range uint64(fleetWorkers) {
		if err := n.router.SetWorker(route.Worker{ID: w, Ranks: 2}); err != nil {
			t.Fatal(err)
		}
	}
	cfg := Config{ID: id, Scope: 7, State: n.router, Transport: n, Now: clock}
	if change != nil {
		change(&cfg)
	}
	n.replicas = New(cfg)
	n.router.SetJournal(n.replicas)
	net.nodes[id] = n
	return n
}

// act is one random step in the life of the node's requests.
func (n *node) act(t *testing.T) {
	t.Helper()
	rng := n.net.rng
	if len(n.live) == 0 || len(n.live) < 60 && rng.IntN(3) == 0 {
		n.next++
		id := fmt.Sprint(n.next)
		local := make([]uint64, rng.IntN(20))
		for i := range local {
			local[i] = uint64(i)<<8 | uint64(rng.IntN(10)/9)
		}
		_, err := n.router.BestWorker(t.Context(), route.Prompt{Local: local}, route.Options{RequestID: id, ExpectedOutput: rng.IntN(40)})
		if err != nil {
			t.Fatal(err)
		}
		n.live = append(n.live, id)
		return
	}
	i := rng.IntN(len(n.live))
	switch id := n.live[i]; rng.IntN(6) {
	case 0:
		n.router.MarkPrefillComplete(id)
	case 1, 2:
		n.router.Output(id, rng.IntN(9))
	case 3:
		n.router.OutputBlock(id, rng.Float64())
	default:
		if rng.IntN(50) > 0 { // else the request is forgotten: its lease ends it
			n.router.Free(id)
		}
		n.live = slices.Delete(n.live, i, i+1)
	}
}

// agree reports whether every router's load is that of all live requests of
// all routers, as counted by a router that was told each of them directly.
func (net *network) agree(t *testing.T) (problem string) {
	t.Helper()
	s := route.DefaultSettings()
	s.TrackOutputBlocks = true
	all, err := route.New(route.Config{BlockSize: 4, Settings: s, ID: 1 << 60, Now: func() time.Time { return net.now }})
	if err != nil {
		t.Fatal(err)
	}
	for w := range uint64(fleetWorkers) {
		if err := all.SetWorker(route.Worker{ID: w, Ranks: 2}); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range net.ids() {
		if net.nodes[id].cut {
			continue
		}
		net.nodes[id].router.Own(func() {}, func(c load.Change) { all.Apply(c) })
	}
	for _, id := range net.ids() {
		if net.nodes[id].cut {
			continue
		}
		want, loads := all.Loads(), net.nodes[id].router.Loads()
		slices.SortFunc(loads, func(a, b route.RankLoad) int { return a.RankID.Compare(b.RankID) }) // as those of all are
		for i, got := range loads {
			if got != want[i] {
				return fmt.Sprintf("router %d has %+v\nwant %+v", id, got, want[i])
			}
		}
	}
	return ""
}

func newNetwork(seed uint64) *network {
	return &network{rng: rand.New(rand.NewPCG(seed, 5)), now: time.Unix(1000, 0), nodes: map[uint64]*node{}, delay: 20}
}

// TestConvergence drives routers over a network that loses, doubles, delays
// and reorders, with routers that come, are cut off and die. Once messages get
// through again all agree within three heartbeats; at the end all is zero.
func TestConvergence(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			net := newNetwork(seed)
			change := func(c *Config) {
				if seed%4 == 3 {
					c.MessageBytes, c.QueueBytes = 1<<10, 1<<10 // many parts, full queues
				}
			}
			for id := range uint64(3) {
				net.join(t, id+1, change)
			}
			act := func() {
				for _, id := range net.ids() {
					for range 1 + net.rng.IntN(4) {
						net.nodes[id].act(t)
					}
				}
			}
			net.run(t, 3*time.Second, act)
			net.drop, net.dup, net.delay = 0.2, 0.2, 400
			net.run(t, 4*time.Second, act)
			net.join(t, 10, change)
			net.nodes[2].cut = true // longer than silence lasts
			net.run(t, 7*time.Second, act)
			net.nodes[2].cut = false
			net.nodes[3].cut = true // and it never comes back
			net.drop, net.dup, net.delay = 0, 0, 20
			net.run(t, 2*time.Second, act)
			net.run(t, 6*time.Second, nil) // until 3's silence is noticed
			if problem := net.agree(t); problem != "" {
				t.Fatal(problem)
			}
			delete(net.nodes, 3)
			net.drop = 0.5
			net.run(t, time.Second, act)
			net.drop = 0
			net.run(t, 3*time.Second, nil)
			if problem := net.agree(t); problem != "" {
				t.Fatalf("after three heartbeats: %s", problem)
			}
			var s Stats
			for _, id := range net.ids() {
				s = net.nodes[id].replicas.Stats()
				if s.Synced != len(net.nodes)-1 || s.Peers != s.Synced || s.Malformed != 0 || s.Foreign != 0 {
					t.Errorf("router %d: %+v", id, s)
				}
			}
			for _, n := range net.nodes {
				for _, id := range n.live {
					n.router.Free(id)
				}
			}
			net.now = net.now.Add(2 * time.Hour) // the leases of those that were forgotten end
			net.run(t, 4*time.Second, nil)
			for id, n := range net.nodes {
				if s := n.router.Stats(); s.Live != 0 {
					t.Errorf("router %d keeps %d bookings", id, s.Live)
				}
				for _, l := range n.router.Loads() {
					if l.Load != (load.Load{}) {
						t.Errorf("router %d: %+v", id, l)
					}
				}
			}
		})
	}
}

// TestNewcomer: a router that joins late knows the load after one exchange,
// and one that is alone sends heartbeats only.
func TestNewcomer(t *testing.T) {
	net := newNetwork(1)
	first := net.join(t, 1, nil)
	net.run(t, 2*time.Second, func() { first.act(t) })
	if s := first.replicas.Stats(); s.Sent != 2 || s.Peers != 0 {
		t.Errorf("alone: %+v", s)
	}
	net.join(t, 2, nil)
	net.run(t, 1200*time.Millisecond, nil)
	if problem := net.agree(t); problem != "" {
		t.Error(problem)
	}
	if s := first.replicas.Stats(); s.Served != 1 {
		t.Errorf("%+v", s)
	}
}

// TestOneWay: a router that hears nobody, and so tells nobody, is heard all the
// while: what it leaves unsaid shows as a gap.
func TestOneWay(t *testing.T) {
	net := newNetwork(1)
	a, b := net.join(t, 1, nil), net.join(t, 2, nil)
	net.run(t, 2*time.Second, func() { a.act(t) })
	b.mute = true
	net.run(t, 7*time.Second, func() { a.act(t) })
	if s := a.replicas.Stats(); s.Peers != 0 || s.Lost != 1 {
		t.Fatalf("the mute router is not lost: %+v", s)
	}
	b.mute = false
	net.run(t, 3*time.Second, nil)
	if problem := net.agree(t); problem != "" {
		t.Error(problem)
	}
}

// TestFullQueue: changes that do not fit the queue are a gap, which a snapshot
// closes.
func TestFullQueue(t *testing.T) {
	net := newNetwork(1)
	a := net.join(t, 1, func(c *Config) { c.MessageBytes, c.QueueBytes = 1<<10, 2<<10 })
	net.join(t, 2, nil)
	net.run(t, 2*time.Second, nil)
	for range 200 {
		a.act(t)
	}
	net.run(t, 3*time.Second, nil)
	if s := a.replicas.Stats(); s.Overflow != 1 {
		t.Errorf("%+v", s)
	}
	if problem := net.agree(t); problem != "" {
		t.Error(problem)
	}
}

// TestLongSnapshot: a router has more in use than a snapshot may tell. Its load is known all the same; but blocks that its
// requests share may count more than once.
func TestLongSnapshot(t *testing.T) {
	net := newNetwork(1)
	change := func(c *Config) { c.MessageBytes, c.SnapshotBytes = 1<<10, 16<<10 }
	a := net.join(t, 1, change)
	local := make([]uint64, 200)
	for i := range 40 {
		local[199] = uint64(i)
		if _, err := a.router.BestWorker(t.Context(), route.Prompt{Local: local}, route.Options{RequestID: fmt.Sprint(i), Worker: new(uint64), DPRank: new(uint32)}); err != nil {
			t.Fatal(err)
		}
	}
	b := net.join(t, 2, change)
	net.run(t, 3*time.Second, nil)
	if s := b.replicas.Stats(); s.Synced != 1 || s.Snapshots != 1 || s.Overflow != 0 {
		t.Errorf("%+v", s)
	}
	want, got := a.router.Loads()[0].Load, b.router.Loads()[0].Load
	if got.DecodeBlocks < want.DecodeBlocks || got.DecodeBlocks > 40*200 {
		t.Errorf("%v blocks, want %v and no more than all", got.DecodeBlocks, want.DecodeBlocks)
	}
	if got.DecodeBlocks = want.DecodeBlocks; got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestLeave: the bookings of a router that leaves go at once.
func TestLeave(t *testing.T) {
	net := newNetwork(1)
	a, b := net.join(t, 1, nil), net.join(t, 2, nil)
	net.run(t, 2*time.Second, func() { a.act(t) })
	if b.router.Stats().Live == 0 {
		t.Fatal("nothing is shared")
	}
	if err := a.replicas.Leave(); err != nil {
		t.Fatal(err)
	}
	delete(net.nodes, 1)
	net.run(t, 100*time.Millisecond, nil)
	if s := b.router.Stats(); s.Live != 0 {
		t.Errorf("%d bookings of a router that has left", s.Live)
	}
}

// TestDelayOfSync measures on the simulated network how long a booking takes
// to be known: one flight.
func TestDelayOfSync(t *testing.T) {
	net := newNetwork(1)
	net.delay = 1
	a, b := net.join(t, 1, nil), net.join(t, 2, nil)
	net.run(t, 2*time.Second, nil)
	if _, err := a.router.BestWorker(t.Context(), route.Prompt{Local: []uint64{1}}, route.Options{RequestID: "x", Worker: new(uint64)}); err != nil {
		t.Fatal(err)
	}
	net.run(t, 20*time.Millisecond, nil)
	want := load.Load{Requests: 1, Prefilling: 1, PrefillTokens: 4, DecodeBlocks: 1, PromptTokens: 4}
	if got := b.router.Loads()[0]; got.Load != want || got.RankID != (shard.RankID{}) {
		t.Errorf("after 20 ms: %+v", got)
	}
}
