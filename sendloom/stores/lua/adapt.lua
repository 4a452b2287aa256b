-- The adaptive rate of one bucket. KEYS[1]: the bucket. ARGV: 'down' or 'up', the agreed rate, factor down, step up and floor as
-- shares of it, and the seconds between two changes: a burst of throttles from one moment is one reason to slow down, not fifty.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local direction, base = ARGV[1], tonumber(ARGV[2])
local rate = tonumber(redis.call('HGET', KEYS[1], 'rate') or base)
rate = math.min(rate, base)
local changed = tonumber(redis.call('HGET', KEYS[1], direction) or 0)
if now - changed >= tonumber(ARGV[6]) then
    if direction == 'down' then
        rate = math.max(base * tonumber(ARGV[5]), rate * tonumber(ARGV[3]))
    else
        rate = math.min(base, rate + base * tonumber(ARGV[4]))
    end
    redis.call('HSET', KEYS[1], 'rate', rate, direction, now)
end
redis.call('EXPIRE', KEYS[1], 3600)
return tostring(rate)
