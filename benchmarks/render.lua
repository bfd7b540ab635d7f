-- wrk: sends each line of a file once, as a chat to render; counts what was answered.
-- wrk -t1 ... -s render.lua URL -- FILE REPEAT
-- With REPEAT 1 the lines are sent over and over; with 0 a file that runs out is reported.

local here

function setup(thread)
  here = thread
end

function init(args)
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
  repeated = args[2] == "1"
  requests = {}
  for line in io.lines(args[1]) do
    table.insert(requests, wrk.format(nil, nil, nil, line))
  end
  sent, good, bad, exhausted, first_bad = 0, 0, 0, 0, ""
end

function request()
  if sent >= #requests and not repeated then exhausted = 1 end
  sent = sent + 1
  return requests[(sent - 1) % #requests + 1]
end

function response(status, headers, body)
  if status == 200 then
    good = good + 1
  else
    bad = bad + 1
    if first_bad == "" then first_bad = status .. " " .. string.sub(body, 1, 200) end
  end
end

function done(summary, latency, _requests)
  io.write(string.format(
    '\n{"seconds": %f, "good": %d, "bad": %d, "exhausted": %d, "p50_ms": %f, "p99_ms": %f}\n',
    summary.duration / 1e6, here:get("good"), here:get("bad"), here:get("exhausted"),
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
  if here:get("first_bad") ~= "" then io.stderr:write(here:get("first_bad") .. "\n") end
end
