-- Keeps the highest version. KEYS[1]: the mirror. ARGV: the generation we trust, the field, the version, the row, seconds to keep.
-- Returns 0 when the generation is another one: then nothing was written.
if redis.call('HGET', KEYS[1], '#generation') ~= ARGV[1] then
    return 0
end
local there = redis.call('HGET', KEYS[1], ARGV[2])
if not there or cjson.decode(there).version < tonumber(ARGV[3]) then
    redis.call('HSET', KEYS[1], ARGV[2], ARGV[4])
end
redis.call('EXPIRE', KEYS[1], ARGV[5])
return 1
