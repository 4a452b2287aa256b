-- Takes the same number of tokens from every bucket, or from none. KEYS: the buckets. ARGV: how many at most, how many
-- seconds a bucket is deep, then each bucket's rate. Returns what was taken, and the seconds until one more.
-- The expiry is set in here with the count: there is no moment at which a bucket could stay for ever.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local taken = tonumber(ARGV[1])
local deep = tonumber(ARGV[2])
local rates, tokens = {}, {}

for i, key in ipairs(KEYS) do
    local rate = tonumber(ARGV[i + 2])
    local seen = redis.call('HMGET', key, 'tokens', 'at', 'rate')
    local adapted = tonumber(seen[3])
    if adapted and adapted < rate then
        rate = adapted
    end
    local depth = math.max(1, rate * deep)
    local have = tonumber(seen[1])
    if have then
        have = math.min(depth, have + math.max(0, now - tonumber(seen[2])) * rate)
    else
        -- New, forgotten or lost: starts low. What was sent just before is not known.
        have = 1
    end
    if rate <= 0 then
        have = 0
    end
    rates[i] = rate
    tokens[i] = have
    taken = math.min(taken, math.floor(have))
end

local wait = 0
for i, key in ipairs(KEYS) do
    local left = tokens[i] - taken
    redis.call('HSET', key, 'tokens', left, 'at', now)
    redis.call('EXPIRE', key, math.max(3600, math.ceil(2 / math.max(rates[i], 0.00001))))
    if rates[i] <= 0 then
        wait = math.max(wait, 60)
    elseif left < 1 then
        wait = math.max(wait, (1 - left) / rates[i])
    end
end
return {taken, tostring(wait)}
