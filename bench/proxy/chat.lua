-- A chat of 10 KB: a system prompt that every request has, and a question of its
-- own. wrk -s chat.lua URL -- [stream]. At the end a line of JSON, times in ms.
local n = 0
local system = string.rep("You are a helpful assistant that answers at length. ", 180)
local tail
function init(args)
  tail = '"}],"model":"m"' .. (args[1] == "stream" and ',"stream":true}' or "}")
  math.randomseed(tonumber(tostring({}):match("0x(%x+)"), 16) % 2147483647 + os.time())
  n = math.random(1, 1000000000)
end
local head = '{"messages":[{"role":"system","content":"' .. system .. '"},{"role":"user","content":"'
function request()
  n = n + 1
  return wrk.format("POST", "/v1/chat/completions", {["Content-Type"] = "application/json"},
    head .. string.rep("question " .. n .. " ", 30) .. tail)
end
