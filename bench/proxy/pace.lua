-- PACE requests a second over all connections: each takes the next place of one schedule.
-- wrk waits whole milliseconds, so that a few go together; what is late is made up for as
-- soon as a connection is free. Waiting is before a request's time begins.
local ffi = require("ffi")
ffi.cdef("typedef struct { long s, ns; } pace_time; int clock_gettime(int, pace_time *);")
local at, every, due = ffi.new("pace_time"), 1e3 / tonumber(os.getenv("PACE")), nil
function delay()
  assert(ffi.C.clock_gettime(1, at) == 0)
  local now = tonumber(at.s) * 1e3 + tonumber(at.ns) / 1e6
  due = (due or now) + every
  return math.max(0, math.floor(due - now))
end
