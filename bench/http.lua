-- For wrk: posts one body again and again.
--   kvbench http --workers 8 --blocks 512 --serve 127.0.0.1:8099 --bodies DIR &
--   BODY=DIR/query wrk -t1 -c16 -d10 --latency -s bench/http.lua http://127.0.0.1:8099/query
local file = assert(io.open(assert(os.getenv("BODY"), "BODY names a file"), "rb"))
wrk.method = "POST"
wrk.body = file:read("*a")
wrk.headers["Content-Type"] = os.getenv("TYPE") or "application/json"
file:close()

-- DELAY: milliseconds that each connection waits before its next request, for a
-- load below the most.
local wait = tonumber(os.getenv("DELAY") or "")
if wait then
  function delay() return wait end
end
