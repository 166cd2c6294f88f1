-- wrk: ranges of RANGE_BYTES at random multiples of it, within FILE_BYTES.
local range, file = tonumber(os.getenv("RANGE_BYTES")), tonumber(os.getenv("FILE_BYTES"))
local places = math.floor(file / range)
request = function()
  local first = math.random(0, places - 1) * range
  return wrk.format("GET", nil, {["Range"] = string.format("bytes=%d-%d", first, first + range - 1)})
end
