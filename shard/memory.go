package shard

// MappedBytes returns how many bytes the indexes of all spaces have mapped
// outside the Go heap and touched. It asks each index that has a method
// MappedBytes() int64, which must be safe to call beside the writer; the
// others count as none.
func (s *Set) MappedBytes() int64 {
	var sum int64
	for _, sp := range *s.spaces.Load() {
		for _, o := range sp.shards {
			if m, ok := o.index.(interface{ MappedBytes() int64 }); ok {
				sum += m.MappedBytes()
			}
		}
	}
	return sum
}
