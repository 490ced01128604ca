-- What ends samples by time, by the death of their owner, or with their session; and the
-- registration of all functions.

-- now, limit, lost_ms, fence_ms -> outcomes dropped, of these never fetched, notes dropped, more
function FUNCTIONS.sweep(keys, args)
  local group = keys[1]
  local now, limit, lost_ms = clock(args[1]), number(args[2]), number(args[3])
  local fenced_by = now - number(args[4])
  local due = redis.call("ZRANGEBYSCORE", group .. ":x", "-inf", now, "LIMIT", 0, limit)
  local evicted, unfetched, told = 0, 0, 0
  if #due > 0 then
    local books = open(group, "")
    for _, id in ipairs(due) do
      local held = sample(group, id)
      if not held then
        redis.call("ZREM", group .. ":x", id)
      elseif held.state == GONE then
        erase(group, books, id, held)
        told = told + 1
      elseif evict(group, books, id, held, held.delivered, now, lost_ms) then
        evicted = evicted + 1
        if not held.delivered and held.state ~= CANCELLED then
          unfetched = unfetched + 1
        end
      end
    end
    -- Where a server that evicts keys took samples, the books are wrong until nothing is left.
    if redis.call("EXISTS", group .. ":x") == 0 then
      books.settled, books.lost = 0, 0
      books.bytes = books.unfinished == 0 and 0 or books.bytes
    end
    close(group, books)
  end
  local over = redis.call("ZRANGEBYSCORE", group .. ":f", "-inf", fenced_by, "LIMIT", 0, limit)
  for _, epoch in ipairs(over) do
    redis.call("HDEL", group .. ":c", "f" .. epoch)
    redis.call("ZREM", group .. ":f", epoch)
  end
  return { evicted, unfetched, told, #due == limit and 1 or 0 }
end

-- epoch, now, limit, lost_ms, adopter ("" is none), most_bytes
-- -> left, lost, adopted: id session seq_id digest caller accepted_at nbytes body meta, nine each
-- | fenced, where the adopter is
function FUNCTIONS.bury(keys, args)
  local group, epoch, adopter = keys[1], args[1], args[5]
  local now, limit, lost_ms = clock(args[2]), number(args[3]), number(args[4])
  local most_bytes = number(args[6])
  local books = open(group, adopter)
  if books.fenced or adopter == epoch then
    return { "fenced" }
  end
  if redis.call("HSETNX", group .. ":c", "f" .. epoch, now) == 1 then
    redis.call("ZADD", group .. ":f", now, epoch)
  end
  local unfinished, lost, adopted, nbytes = group .. ":o:" .. epoch, 0, {}, 0
  for _ = 1, limit do
    local id = nbytes < most_bytes and redis.call("SPOP", unfinished)
    if not id then
      break
    end
    local held = sample(group, id)
    if not held then
      books.unfinished = books.unfinished - 1
    elseif adopter ~= "" and held.adoptable then
      local to = AFTER[held.state][RETRY]
      books.bytes = books.bytes - held.reserved
      -- A table that lets only what runs come back; what is queued is that already.
      to = to == QUEUED and to or held.state
      local key = group .. ":s:" .. id
      redis.call("HSET", key, "ow", adopter, "st", to)
      redis.call("HDEL", key, "rv")
      redis.call("SADD", group .. ":o:" .. adopter, id)
      local body, meta = redis.call("HGET", key, "bd"), redis.call("HGET", key, "me")
      nbytes = nbytes + #body + #meta
      for _, value in ipairs({ id, held.session, held.seq_id, held.digest, held.caller,
        held.accepted_at, held.nbytes, body, meta }) do
        adopted[#adopted + 1] = value
      end
    elseif evict(group, books, id, held, false, now, lost_ms) then
      lost = lost + 1
    end
  end
  close(group, books)
  return { redis.call("SCARD", unfinished), lost, adopted }
end

-- session, epoch, now, told, accepted_by, scan, limit, lost_ms -> scan ("0" is the end), ended
-- told: the client said that it is finished, and nothing stays; else it may come back, and finds
-- notes. Samples accepted later than that are spared.
function FUNCTIONS.forget(keys, args)
  local group = keys[1]
  local session, epoch, now, told, accepted_by, scan, limit, lost_ms = unpack(args)
  now, accepted_by, lost_ms = clock(now), number(accepted_by), number(lost_ms)
  told = told == "1"
  local index = group .. ":i:" .. session
  local books, ended = open(group, ""), 0
  local found = redis.call("HSCAN", index, scan, "COUNT", limit)
  for position = 1, #found[2], 2 do
    local seq_id, id = found[2][position], found[2][position + 1]
    local held = sample(group, id)
    if not held then
      redis.call("HDEL", index, seq_id)
    elseif held.accepted_at <= accepted_by then
      if held.state == GONE then
        if told then
          erase(group, books, id, held)
        end
      elseif evict(group, books, id, held, told, now, lost_ms) then
        ended = ended + 1
        if held.state <= RUNNING and held.owner ~= epoch then
          wake(group, held.owner, "c" .. id)
        end
      end
    end
  end
  close(group, books)
  -- What was accepted since needs its log.
  if told and found[1] == "0" and redis.call("EXISTS", index) == 0 then
    local positions = group .. ":b:" .. session
    for _, field in ipairs(redis.call("HKEYS", positions)) do
      local clone = field:match("^w(%d+)$")
      if clone then
        wake(group, redis.call("HGET", positions, field), "p" .. clone .. ":" .. session)
      elseif field ~= "n" then
        redis.call("UNLINK", group .. ":l:" .. session .. ":" .. field)
      end
    end
    redis.call("UNLINK", positions)
  end
  return { found[1], ended }
end

-- Little of Lua is there while a library is loaded: no loops over tables.
local function register(name, callback, flags)
  redis.register_function({
    function_name = VERB_PREFIX .. name,
    callback = callback,
    flags = flags,
  })
end

-- These two are refused while the server has no memory left; the rest frees some, or takes a few
-- bytes. `succeed` is `move` with a result.
register("accept", FUNCTIONS.accept, {})
register("succeed", FUNCTIONS.move, {})
register("move", FUNCTIONS.move, { "allow-oom" })
register("look", FUNCTIONS.look, { "allow-oom" })
register("page", FUNCTIONS.page, { "allow-oom" })
register("acknowledge", FUNCTIONS.acknowledge, { "allow-oom" })
register("delivered", FUNCTIONS.delivered, { "allow-oom" })
register("sweep", FUNCTIONS.sweep, { "allow-oom" })
register("bury", FUNCTIONS.bury, { "allow-oom" })
register("forget", FUNCTIONS.forget, { "allow-oom" })
