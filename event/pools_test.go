package event

import "testing"

func TestPoolsThatCannotBe(t *testing.T) {
	for _, bad := range [][]Pool{
		{{}}, {{Name: "a", Tiers: []string{"device"}}}, {{Name: "a"}, {Name: "b", Tiers: []string{"external"}}},
		{{Name: "a", Tiers: []string{"disk", "DISK"}}}, {{Name: "a", Tiers: []string{"tape"}}}, {{Name: "a", Chunk: 1 << 25}}, {{Name: "a", Age: 29}},
		make([]Pool, 4),
	} {
		if CheckPools(bad) == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	good := []Pool{{Name: "a", Tiers: []string{"disk"}}, {Name: "b", Chunk: 256}}
	if err := CheckPools(good); err != nil || !PoolOf(good, External) || !PoolOf(good, Disk) || PoolOf(good, HostPinned) {
		t.Errorf("%v", err)
	}
	if (Pool{Name: "b"}).Equal(good[1]) || !(Pool{Name: "b", Chunk: 256, Tiers: []string{"SHARED"}}).Equal(good[1]) {
		t.Error("the same are other pools, or others the same")
	}
}
