-- Prints what wrk knows as one line of JSON; times are in microseconds.
done = function(summary, latency, requests)
   local e = summary.errors
   io.write(string.format(
      'RESULT {"requests": %d, "duration": %d, "p50": %d, "p99": %d, "max": %d, ' ..
      '"connect": %d, "read": %d, "write": %d, "status": %d, "timeout": %d}\n',
      summary.requests, summary.duration,
      latency:percentile(50), latency:percentile(99), latency.max,
      e.connect, e.read, e.write, e.status, e.timeout))
end
