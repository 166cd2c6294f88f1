-- RANGE_BYTES: ranges of that length at random multiples of it from FIRST_BYTE on, as far as FILE_BYTES; else
-- the whole file.
-- At the end one line: requests, bytes, microseconds, errors.
local from = tonumber(os.getenv("FIRST_BYTE"))
local range, file = tonumber(os.getenv("RANGE_BYTES")), tonumber(os.getenv("FILE_BYTES"))
if range then
  local places = math.floor((file - from) / range)
  request = function()
    local first = from + math.random(0, places - 1) * range
    return wrk.format("GET", nil, {["Range"] = string.format("bytes=%d-%d", first, first + range - 1)})
  end
end
done = function(summary)
  local e = summary.errors
  local errors = e.connect + e.read + e.write + e.status + e.timeout
  print(string.format("SUMMARY %d %d %d %d", summary.requests, summary.bytes, summary.duration, errors))
end
