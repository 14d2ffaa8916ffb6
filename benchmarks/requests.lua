-- Sends prepared requests in turn: wrk … -s requests.lua URL -- FILE [once]
-- FILE holds each request as its length, a line feed and its bytes. With "once" nothing is sent after the last of them,
-- and a line says so: wrk itself only knows durations, and is to be interrupted by whoever reads that line.

local prepared = {}
local number = 0
local count = 0
local once = false

function init(args)
  local file = assert(io.open(args[1], "rb"))
  local text = file:read("*a")
  file:close()
  once = args[2] == "once"
  local position = 1
  while position <= #text do
    local line_end = text:find("\n", position, true)
    local length = tonumber(text:sub(position, line_end - 1))
    count = count + 1
    prepared[count] = text:sub(line_end + 1, line_end + length)
    position = line_end + length + 1
  end
end

function request()
  if number == count then
    if once then
      wrk.thread:stop()
      io.write("through\n")
      io.flush()
    end
    number = 0
  end
  number = number + 1
  return prepared[number]
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '{"microseconds":%d,"requests":%d,"p50":%d,"p99":%d,"max":%d,"refused":%d,"failed":%d,"late":%d}\n',
    summary.duration, summary.requests, latency:percentile(50), latency:percentile(99), latency.max,
    errors.status, errors.connect + errors.read + errors.write, errors.timeout))
end
