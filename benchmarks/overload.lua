-- wrk: chat requests that each connection sends after a pause, and what was answered.
-- wrk ... -s overload.lua URL -- FILE PAUSE_MS MARK
-- FILE holds one request body per line; a 200 counts as served if it holds MARK.

local threads = {}

function setup(thread)
  table.insert(threads, thread)
  thread:set("number", #threads)
end

function init(args)
  math.randomseed(number * 7919)
  bodies = {}
  for line in io.lines(args[1]) do table.insert(bodies, line) end
  pause = tonumber(args[2])
  mark = args[3]
  served, refused, other, hasty = 0, 0, 0, 0
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
end

function delay()
  return math.random(0, 2 * pause)
end

function request()
  return wrk.format(nil, nil, nil, bodies[math.random(#bodies)])
end

function response(status, headers, body)
  if status == 200 and string.find(body, mark, 1, true) then
    served = served + 1
  elseif status == 429 then
    refused = refused + 1
    if not (headers["retry-after"] or headers["Retry-After"]) then hasty = hasty + 1 end
  else
    other = other + 1
  end
end

function done(summary, latency, requests)
  local total = { served = 0, refused = 0, other = 0, hasty = 0 }
  for _, thread in ipairs(threads) do
    for name, count in pairs(total) do total[name] = count + thread:get(name) end
  end
  local errors = summary.errors
  io.write(string.format(
    '{"seconds": %f, "served": %d, "refused": %d, "other": %d, "hasty": %d, "socket_errors": %d, "timeouts": %d}\n',
    summary.duration / 1e6, total.served, total.refused, total.other, total.hasty,
    errors.connect + errors.read + errors.write, errors.timeout))
end
