function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('{"requests":%d,"seconds":%.6f,"p50_ms":%.4f,"p99_ms":%.4f,"p999_ms":%.4f,"max_ms":%.4f,"failed":%d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    latency:percentile(99.9) / 1e3, latency.max / 1e3, e.connect + e.read + e.write + e.status + e.timeout))
end
