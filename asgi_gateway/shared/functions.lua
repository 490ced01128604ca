-- What a gateway does with one sample, and with the log of one poller.

local FUNCTIONS = {}

-- id, epoch, now, session, seq_id, digest, caller, nbytes, max_unfinished, max_bytes [, body, meta]
-- -> ok id | existing id state owner | conflict seq_id | full what held limit | fenced
-- The id that is replied is the one to use: a lost sample keeps its own. A limit of 0 is none.
function FUNCTIONS.accept(keys, args)
  local group = keys[1]
  local id, epoch, now, session, seq_id, digest, caller, nbytes, max_unfinished, max_bytes, body,
    meta = unpack(args)
  now, nbytes = clock(now), number(nbytes)
  max_unfinished, max_bytes = number(max_unfinished), number(max_bytes)
  local books = open(group, epoch)
  if books.fenced then
    return { "fenced" }
  end
  local index = group .. ":i:" .. session
  local known = redis.call("HGET", index, seq_id)
  local held = known and sample(group, known)
  if held then
    if held.digest ~= digest or held.caller ~= caller then
      return { "conflict", seq_id }
    end
    if held.state ~= GONE then
      return { "existing", known, held.state, held.owner }
    end
  end
  if max_unfinished > 0 and books.unfinished >= max_unfinished then
    return { "full", "in_flight", books.unfinished, max_unfinished }
  end
  if max_bytes > 0 and books.bytes + nbytes > max_bytes then
    return { "full", "bytes", books.bytes, max_bytes }
  end
  if held then
    erase(group, books, known, held)
    id = known
  end
  local key = group .. ":s:" .. id
  redis.call("HSET", key, "st", QUEUED, "ow", epoch, "ca", caller, "ss", session, "sq", seq_id,
    "dg", digest, "nb", nbytes, "at", now)
  if body then
    redis.call("HSET", key, "bd", body, "me", meta)
  end
  redis.call("HSET", index, seq_id, id)
  redis.call("SADD", group .. ":o:" .. epoch, id)
  books.unfinished = books.unfinished + 1
  books.bytes = books.bytes + nbytes
  close(group, books)
  return { "ok", id }
end

-- id, epoch, now, events, caller, ttl_ms, keep_ms, flag, value, category
-- -> ok state | late state | bug state | foreign owner | fenced | missing
-- events: digits of events that are taken together or not at all. caller: "" is not asked.
-- value: START: bytes to reserve; SUCCEED: the result; FAIL: the text. ttl_ms: of the outcome or
-- the note. flag: 1 where the outcome is delivered already, or for EVICT told.
function FUNCTIONS.move(keys, args)
  local group = keys[1]
  local id, epoch, now, events, caller, ttl_ms, keep_ms, flag, value, category = unpack(args)
  now, ttl_ms, keep_ms = clock(now), number(ttl_ms), number(keep_ms)
  local books = open(group, epoch)
  if books.fenced then
    return { "fenced" }
  end
  local held = sample(group, id)
  if not held then
    -- It is in the books still where a server that evicts keys took it.
    if redis.call("SREM", group .. ":o:" .. epoch, id) == 1 then
      books.unfinished = books.unfinished - 1
      close(group, books)
    end
    return { "missing" }
  end
  if caller ~= "" and held.caller ~= caller then
    return { "missing" }
  end
  local to, event = held.state, nil
  for position = 1, #events do
    event = events:byte(position) - 48
    local cell = AFTER[to][event]
    if cell == "late" then
      return { "late", held.state }
    end
    -- Anybody may cancel, and drop an outcome: its owner may be dead.
    if held.owner ~= epoch and event ~= CANCEL and not SETTLED[held.state] then
      return { "foreign", held.owner }
    end
    if cell == "bug" then
      return { "bug", held.state }
    end
    to = cell
  end
  if to == GONE then
    evict(group, books, id, held, flag == "1", now, ttl_ms)
  elseif SETTLED[to] then
    settle(group, books, id, held, to, now, ttl_ms, keep_ms, flag == "1", value or "",
      category or "")
    if held.owner ~= epoch then
      wake(group, held.owner, "c" .. id)
    end
  else
    local key, reserved = group .. ":s:" .. id, to == RUNNING and number(value) or 0
    redis.call("HSET", key, "st", to)
    if reserved == held.reserved then
      return { "ok", to }
    end
    if reserved > 0 then
      redis.call("HSET", key, "rv", reserved)
    else
      redis.call("HDEL", key, "rv")
    end
    books.bytes = books.bytes + reserved - held.reserved
  end
  close(group, books)
  return { "ok", to }
end

-- id, caller, watcher ("" is none), most_bytes of a result that comes at once
-- -> missing | state owner session seq_id nbytes text category delivered accepted_at result
function FUNCTIONS.look(keys, args)
  local key = keys[1] .. ":s:" .. args[1]
  local kept = redis.call("HMGET", key, "st", "ow", "ss", "sq", "nb", "fa", "fc", "de", "at", "ca",
    "wa")
  if not kept[1] or kept[10] ~= args[2] then
    return { "missing" }
  end
  local state = tonumber(kept[1])
  if state <= RUNNING and args[3] ~= "" then
    local watchers = joined(kept[11], args[3])
    if watchers then
      redis.call("HSET", key, "wa", watchers)
    end
  end
  local nbytes, result = tonumber(kept[5]), false
  if state == SUCCEEDED and nbytes <= number(args[4]) then
    result = redis.call("GET", keys[1] .. ":r:" .. args[1])
  end
  return { state, kept[2], kept[3], kept[4], nbytes, kept[6] or "", kept[7] or "",
    kept[8] and 1 or 0, tonumber(kept[9]), result }
end

-- session, clone, cursor, limit, watcher ("" is none), now, keep_ms
-- -> cursor entries... | clones
function FUNCTIONS.page(keys, args)
  local group = keys[1]
  local session, clone, cursor, limit, watcher, now, keep_ms = unpack(args)
  cursor, limit, now, keep_ms = number(cursor), number(limit), clock(now), number(keep_ms)
  local positions, log = group .. ":b:" .. session, group .. ":l:" .. session .. ":" .. clone
  local kept = redis.call("HMGET", positions, clone, "w" .. clone, "n")
  local last = tonumber(kept[1]) or now * 1000
  if not kept[2] then
    if (tonumber(kept[3]) or 0) >= MAX_CLONES then
      return { "clones" }
    end
    redis.call("HSET", positions, clone, last, "w" .. clone, "")
    redis.call("HINCRBY", positions, "n", 1)
  end
  redis.call("PEXPIRE", positions, keep_ms)
  -- A cursor from outside is of an earlier life; its client is told what is open.
  if cursor <= last then
    redis.call("ZREMRANGEBYSCORE", log, "-inf", cursor)
  end
  local found = redis.call("ZRANGE", log, 0, limit - 1)
  if #found > 0 then
    table.insert(found, 1, tonumber(redis.call("ZSCORE", log, found[#found])))
    return found
  end
  if watcher ~= "" then
    local watchers = joined(kept[2], watcher)
    if watchers then
      redis.call("HSET", positions, "w" .. clone, watchers)
    end
  end
  return { last }
end

-- caller, notes ("1": only notes of lost samples, whose client knows now), ids...
-- -> outcomes freed, notes dropped
function FUNCTIONS.acknowledge(keys, args)
  local group, caller, notes = keys[1], args[1], args[2] == "1"
  local books, freed, told = open(group, ""), 0, 0
  for position = 3, #args do
    local id = args[position]
    local held = sample(group, id)
    if held and held.caller == caller then
      if held.state == GONE then
        erase(group, books, id, held)
        told = told + 1
      elseif SETTLED[held.state] and not notes and evict(group, books, id, held, true) then
        freed = freed + 1
      end
    end
  end
  if freed + told > 0 then
    close(group, books)
  end
  return { freed, told }
end

-- id, now, ttl_ms, keep_ms -> 1 the first delivery | 0 another | -1 it has no outcome
function FUNCTIONS.delivered(keys, args)
  local group, id = keys[1], args[1]
  local now, ttl_ms, keep_ms = clock(args[2]), number(args[3]), number(args[4])
  local key = group .. ":s:" .. id
  local kept = redis.call("HMGET", key, "st", "de")
  if not kept[1] or not SETTLED[tonumber(kept[1])] then
    return -1
  end
  redis.call("ZADD", group .. ":x", now + ttl_ms, id)
  redis.call("PEXPIRE", group .. ":r:" .. id, keep_ms)
  if kept[2] then
    return 0
  end
  redis.call("HSET", key, "de", 1)
  return 1
end
