"""What a job store does in one step. KEYS of all scripts: spec, run, lease, steps, outcome."""

from __future__ import annotations

_KEEP = """
for _, i in ipairs({1, 2, 4, 5}) do redis.call('EXPIRE', KEYS[i], ttl) end
"""

_FORGET_STEPS = """
redis.call('EXPIRE', KEYS[4], math.min(ttl, 600)) -- with an outcome they are of no use any more
"""

_MINE = """
if redis.call('EXISTS', KEYS[5]) == 1 then return 'ended' end
if redis.call('HGET', KEYS[2], 'fence') ~= ARGV[1] then return 'lost' end
"""

CLAIM = f"""
-- ARGV: token, lease ms, now, ttl. The same token again: the same claim, whose answer was not heard.
local ttl = ARGV[4]
local spec = redis.call('GET', KEYS[1])
if not spec then return {{'gone'}} end
local outcome = redis.call('GET', KEYS[5])
if outcome then return {{'ended', outcome}} end
local holder = redis.call('GET', KEYS[3])
if holder and holder ~= ARGV[1] then return {{'leased'}} end
if not holder then
  redis.call('HINCRBY', KEYS[2], 'fence', 1)
  redis.call('HINCRBY', KEYS[2], 'deliveries', 1)
  redis.call('HSETNX', KEYS[2], 'started', ARGV[3])
end
redis.call('SET', KEYS[3], ARGV[1], 'PX', ARGV[2])
{_KEEP}
return {{'claimed', redis.call('HGET', KEYS[2], 'fence'), redis.call('HGET', KEYS[2], 'deliveries'), spec}}
"""

BEAT = f"""
-- ARGV: fence, token, lease ms, progress or '', ttl
local ttl = ARGV[5]
{_MINE}
redis.call('SET', KEYS[3], ARGV[2], 'PX', ARGV[3])
if ARGV[4] ~= '' then redis.call('HSET', KEYS[2], 'progress', ARGV[4]) end
{_KEEP}
return 'ok'
"""

PUT = f"""
-- ARGV: fence, digest, output, ttl. A job that gets on is no job that kills its workers.
local ttl = ARGV[4]
{_MINE}
if redis.call('HSETNX', KEYS[4], ARGV[2], ARGV[3]) == 1 then redis.call('HSET', KEYS[2], 'deliveries', 0) end
{_KEEP}
return {{redis.call('HGET', KEYS[4], ARGV[2])}}
"""

FINISH = f"""
-- ARGV: fence, outcome, progress or '', ttl
local ttl = ARGV[4]
if redis.call('GET', KEYS[5]) == ARGV[2] then return 'ok' end
{_MINE}
redis.call('SET', KEYS[5], ARGV[2])
redis.call('DEL', KEYS[3])
if ARGV[3] ~= '' then redis.call('HSET', KEYS[2], 'progress', ARGV[3]) end
{_KEEP}
{_FORGET_STEPS}
return 'ok'
"""

RELEASE = f"""
-- ARGV: fence, token
{_MINE}
if redis.call('GET', KEYS[3]) ~= ARGV[2] then return 'lost' end
redis.call('DEL', KEYS[3])
redis.call('HINCRBY', KEYS[2], 'deliveries', -1)
return 'ok'
"""

CANCEL = f"""
-- ARGV: outcome, ttl
local ttl = ARGV[2]
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('EXISTS', KEYS[5]) == 1 then return 0 end
redis.call('SET', KEYS[5], ARGV[1])
redis.call('DEL', KEYS[3])
{_KEEP}
{_FORGET_STEPS}
return 1
"""
