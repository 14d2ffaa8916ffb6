"""The rate limiter in Redis: one script, the server's clock, and a counter that all processes share."""

import time

from refract.kernel.errors import Unavailable
from refract.runtime.distributed.redis_connection import RedisConnection, Script
from refract.runtime.windows import BUCKETS, MICROSECONDS, Policy, SlidingWindows, Verdict, uncounted

# The arithmetic of windows.SlidingWindow. The counter is a hash from a bucket's number to its hits. Microseconds since
# 1970 are exact in Lua's numbers until 2255; a bucket's number is formatted by hand, because Lua would round it.
# A bucket that is far in the future was written by a clock that has been set back, and does not count.
_HIT = Script("""
local width, buckets, limit, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local current = math.floor(now / width)

local counted, total = {}, 0
local flat = redis.call('HGETALL', KEYS[1])
for index = 1, #flat, 2 do
    local bucket, hits = tonumber(flat[index]), tonumber(flat[index + 1])
    if bucket < current - buckets or bucket > current + buckets then
        redis.call('HDEL', KEYS[1], flat[index])
    else
        total = total + hits
        counted[#counted + 1] = {bucket, hits}
    end
end

if total + cost <= limit then
    if cost > 0 then
        redis.call('HINCRBY', KEYS[1], string.format('%.0f', current), cost)
        redis.call('PEXPIRE', KEYS[1], math.ceil((buckets + 1) * width / 1000))
    end
    return {1, limit - total - cost, 0}
end

table.sort(counted, function(one, other) return one[1] < other[1] end)
local left = total
for _, bucket in ipairs(counted) do
    left = left - bucket[2]
    if left + cost <= limit then
        return {0, limit - total, (bucket[1] + buckets + 1) * width - now}
    end
end
return {0, limit - total, (buckets + 1) * width}
""")


class DistributedRateLimiter:
    """Counts in Redis; while that is away, each policy says whether to let through or to count in this process."""

    def __init__(self, redis: RedisConnection) -> None:
        self._redis = redis
        self._local = SlidingWindows()

    async def hit(self, who: str, policy: Policy, cost: int = 1) -> Verdict:
        """Count `cost` hits if they fit, and say so."""
        if policy.limit == 0:
            return uncounted(policy)
        try:
            allowed, remaining, wait = await self._redis.run(
                _HIT, [policy.key(who)], [policy.bucket, BUCKETS, policy.limit, cost]
            )
        except Unavailable:
            return self._without_redis(who, policy, cost)
        return Verdict(allowed=bool(allowed), limit=policy.limit, remaining=remaining, retry_after=wait / MICROSECONDS)

    def hit_soon(self, who: str, policy: Policy, cost: int = 1) -> Verdict | None:  # noqa: ARG002  # the port's form
        """None: only Redis can tell, and it has to be awaited."""
        return None

    async def ping(self) -> None:
        """Return if the counter answers; raise Unavailable if not."""
        await self._redis.ping()

    async def close(self) -> None:
        """Nothing to give back: the connection belongs to whoever made it."""

    def _without_redis(self, who: str, policy: Policy, cost: int) -> Verdict:
        if policy.when_away == "open":
            return uncounted(policy)
        return self._local.hit(who, policy, time.monotonic_ns() // 1000, cost)
