-- A new generation: whatever was there is not believed any more. KEYS[1]: the mirror. ARGV[1]: the generation; ARGV[2]: 'always' or
-- 'if-missing'; ARGV[3]: seconds it is kept. Returns the generation there is now.
local there = redis.call('HGET', KEYS[1], '#generation')
if ARGV[2] == 'if-missing' and there then
    return there
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], '#generation', ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return ARGV[1]
