-- One group of samples: its keys, its books, and what may become of a sample. Joined behind the
-- constants that library.py writes, which hold the table of states; functions.lua and endings.lua
-- follow.
--
-- `group` is the tag of the keys, such as {agw:3f}, and KEYS[1] of every call:
--   group:s:<id>              hash, a sample: st state, ow owner, ca caller, ss sampling session,
--                             sq seq_id, dg digest, nb bytes charged, rv bytes reserved,
--                             at accepted, wa epochs to wake, de delivered, fa fc failure,
--                             bd me body and meta
--   group:r:<id>              its result bytes
--   group:i:<session>         hash, seq_id -> id
--   group:l:<session>:<clone> sorted set, position -> "<id>:<size>", "-" for a failure: the
--                             completion log, without what its poller has seen
--   group:b:<session>         hash, per clone: <clone> last position, w<clone> epochs to wake where
--                             it was ever polled; n how many of these
--   group:o:<epoch>           set, unfinished samples of an owner
--   group:x                   sorted set, deadline -> id
--   group:c                   hash, the books: b bytes, u unfinished, s settled, l lost notes, and
--                             f<epoch> for each that is fenced
--   group:f                   sorted set, when -> fenced epoch
--
-- Every end of a sample is one path: `settle` for an outcome, `lose` where a note of it stays,
-- `erase` where nothing does; each takes it out of all the keys that its state has it in.
--
-- A script that fails half-way is not undone, so arguments become numbers before the first write.
-- Lua's own number to text cuts after 14 digits; as arguments of a command numbers are whole.

local function number(text)
  local value = tonumber(text)
  if not value then
    error({ err = "ERR not a number" })
  end
  return value
end

-- Milliseconds; the server's own where the caller gives none.
local function clock(text)
  if text ~= "" then
    return number(text)
  end
  local time = redis.call("TIME")
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- seq_ids go up to 2^63 and stay text.
local function clone_of(seq_id)
  return #seq_id > CLONE_DIGITS and seq_id:sub(1, -CLONE_DIGITS - 1) or "0"
end

-- One message to each process of a list of epochs.
local function wake(group, epochs, message)
  if not epochs or epochs == "" then
    return
  end
  local channel = group:sub(2, -5) .. ":to:"
  for epoch in epochs:gmatch("%S+") do
    redis.call("PUBLISH", channel .. epoch, message)
  end
end

-- A list with one epoch more, or nothing where it is in it. Of a list too long the oldest go:
-- these processes are dead, or their polls end with the hold.
local function joined(epochs, epoch)
  if not epochs or epochs == "" then
    return epoch
  end
  if (" " .. epochs .. " "):find(" " .. epoch .. " ", 1, true) then
    return nil
  end
  local _, spaces = epochs:gsub(" ", "")
  if spaces + 1 >= MAX_WATCHERS then
    epochs = epochs:match(" (.*)")
  end
  return epochs .. " " .. epoch
end

-- The books are read once in a call, whatever it is about, and written once.
local function open(group, epoch)
  local kept = redis.call("HMGET", group .. ":c", "b", "u", "s", "l", "f" .. epoch)
  return {
    bytes = tonumber(kept[1]) or 0,
    unfinished = tonumber(kept[2]) or 0,
    settled = tonumber(kept[3]) or 0,
    lost = tonumber(kept[4]) or 0,
    fenced = kept[5] and true or false,
    -- session:clone of logs that may be empty now
    emptied = {},
  }
end

local function close(group, books)
  for log, at in pairs(books.emptied) do
    -- The positions of a log that was never polled are of no use to anybody.
    if redis.call("EXISTS", group .. ":l:" .. log) == 0 then
      local positions = group .. ":b:" .. at[1]
      if redis.call("HEXISTS", positions, "w" .. at[2]) == 0 then
        redis.call("HDEL", positions, at[2])
      end
    end
  end
  if books.bytes == 0 and books.unfinished == 0 and books.settled == 0 and books.lost == 0 then
    redis.call("HDEL", group .. ":c", "b", "u", "s", "l")
  else
    redis.call("HSET", group .. ":c", "b", books.bytes, "u", books.unfinished, "s", books.settled,
      "l", books.lost)
  end
end

local function sample(group, id)
  local kept = redis.call("HMGET", group .. ":s:" .. id, "st", "ow", "ca", "ss", "sq", "dg", "nb",
    "rv", "wa", "de", "me", "at")
  if not kept[1] then
    return nil
  end
  return {
    state = tonumber(kept[1]),
    owner = kept[2],
    caller = kept[3],
    session = kept[4],
    seq_id = kept[5],
    digest = kept[6],
    nbytes = tonumber(kept[7]),
    reserved = tonumber(kept[8]) or 0,
    watchers = kept[9],
    delivered = kept[10],
    -- Its body is held too.
    adoptable = kept[11] and true or false,
    accepted_at = tonumber(kept[12]),
  }
end

local function log_of(group, held)
  return group .. ":l:" .. held.session .. ":" .. clone_of(held.seq_id)
end

local function entry(id, state, nbytes)
  return state == SUCCEEDED and id .. ":" .. nbytes or id .. ":-"
end

-- Write into the completion log, and wake who waits for it to grow; they say so again.
local function report(group, id, held, state, nbytes, now)
  local clone = clone_of(held.seq_id)
  local positions = group .. ":b:" .. held.session
  local kept = redis.call("HMGET", positions, clone, "w" .. clone)
  -- A log begins above every position that was ever given out: that of a time, in microseconds.
  local position = (tonumber(kept[1]) or now * 1000) + 1
  redis.call("ZADD", log_of(group, held), position, entry(id, state, nbytes))
  if kept[2] and kept[2] ~= "" then
    redis.call("HSET", positions, clone, position, "w" .. clone, "")
    wake(group, kept[2], "p" .. clone .. ":" .. held.session)
  else
    redis.call("HSET", positions, clone, position)
  end
end

-- Take a sample out of the books.
local function uncharge(group, books, id, held)
  books.bytes = books.bytes - held.nbytes - held.reserved
  if held.state == GONE then
    books.lost = books.lost - 1
  elseif SETTLED[held.state] then
    books.settled = books.settled - 1
  else
    books.unfinished = books.unfinished - 1
    redis.call("SREM", group .. ":o:" .. held.owner, id)
  end
end

-- What is given goes in; what only an unfinished sample has goes out.
local function settle(group, books, id, held, to, now, ttl_ms, keep_ms, delivered, value, category)
  uncharge(group, books, id, held)
  local key, nbytes = group .. ":s:" .. id, 0
  if to == SUCCEEDED then
    nbytes = #value
    redis.call("SET", group .. ":r:" .. id, value, "PX", keep_ms)
    redis.call("HSET", key, "st", to, "nb", nbytes)
  elseif to == FAILED then
    nbytes = #value
    redis.call("HSET", key, "st", to, "nb", nbytes, "fa", value, "fc", category)
  else
    redis.call("HSET", key, "st", to, "nb", nbytes)
  end
  if held.reserved > 0 or held.watchers or held.adoptable then
    redis.call("HDEL", key, "rv", "wa", "bd", "me")
  end
  if delivered then
    redis.call("HSET", key, "de", 1)
  end
  redis.call("ZADD", group .. ":x", now + ttl_ms, id)
  books.settled = books.settled + 1
  books.bytes = books.bytes + nbytes
  report(group, id, held, to, nbytes, now)
  wake(group, held.watchers, "w" .. id)
end

-- Nothing stays of a sample, or of the note of its loss.
local function erase(group, books, id, held)
  uncharge(group, books, id, held)
  redis.call("UNLINK", group .. ":s:" .. id, group .. ":r:" .. id)
  redis.call("HDEL", group .. ":i:" .. held.session, held.seq_id)
  local log = log_of(group, held)
  if held.state > RUNNING then
    redis.call("ZREM", group .. ":x", id)
    redis.call("ZREM", log, entry(id, held.state, held.nbytes))
  else
    wake(group, held.watchers, "w" .. id)
  end
  local clone = clone_of(held.seq_id)
  books.emptied[held.session .. ":" .. clone] = { held.session, clone }
end

-- A note stays: the client is told 410 or a failure, and a repeated submit finds the id.
local function lose(group, books, id, held, now, lost_ms)
  uncharge(group, books, id, held)
  local key = group .. ":s:" .. id
  if held.state <= RUNNING then
    report(group, id, held, GONE, 0, now)
    wake(group, held.watchers, "w" .. id)
  elseif held.state == SUCCEEDED then
    redis.call("UNLINK", group .. ":r:" .. id)
    -- Its poller may not have seen it yet, and is told in the same place.
    local log, told = log_of(group, held), entry(id, SUCCEEDED, held.nbytes)
    local position = redis.call("ZSCORE", log, told)
    if position then
      redis.call("ZREM", log, told)
      redis.call("ZADD", log, position, entry(id, GONE, 0))
    end
  end
  redis.call("HSET", key, "st", GONE, "nb", 0)
  redis.call("HDEL", key, "rv", "wa", "bd", "me", "de", "fa", "fc")
  redis.call("ZADD", group .. ":x", now + lost_ms, id)
  books.lost = books.lost + 1
end

-- Whether the table lets a sample be evicted; then it is. told: its client knows, or will not ask.
local function evict(group, books, id, held, told, now, lost_ms)
  if AFTER[held.state][EVICT] ~= GONE then
    return false
  end
  if told then
    erase(group, books, id, held)
  else
    lose(group, books, id, held, now, lost_ms)
  end
  return true
end
