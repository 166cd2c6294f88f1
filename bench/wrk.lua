-- RANGE_BYTES: ranges of that length at random multiples of it within FILE_BYTES; else the whole file.
-- At the end one line: requests, bytes, microseconds, errors.
local range, file = tonumber(os.getenv("RANGE_BYTES")), tonumber(os.getenv("FILE_BYTES"))
if range then
  local places = math.floor(file / range)
  request = function()
    local first = math.random(0, places - 1) * range
    return wrk.format("GET", nil, {["Range"] = string.format("bytes=%d-%d", first, first + range - 1)})
  end
end
done = function(summary)
  local e = summary.errors
  local errors = e.connect + e.read + e.write + e.status + e.timeout
  print(string.format("SUMMARY %d %d %d %d", summary.requests, summary.bytes, summary.duration, errors))
end
