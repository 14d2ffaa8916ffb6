"""Named atomic changes of a small hash, each written twice: as Lua for Redis and as Python for the embedded twin."""

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass

Fields = MutableMapping[str, str]
Change = Callable[[Fields, Sequence[str]], str]
"""Changes the fields in place, given the arguments as texts, and returns a word for what happened.

The fields may be in a file: asking for one is cheap, going through all of them is not.
"""


@dataclass(frozen=True, slots=True)
class Transition:
    """One atomic change. `lua` works on KEYS[1] and ARGV and returns a text; `python` does the same to a mapping.

    Neither sees a clock. A transition of an absent hash starts from no fields, and does not give it a time to live.
    """

    name: str
    lua: str
    python: Change


CRAWLING = "CRAWLING"
"""Items are still being found, so that the total is not final and the job cannot be done."""
WAITING = "PROCESSING_WAIT"
DONE = "DONE"


def item_field(item_id: str) -> str:
    """The field that marks an item as counted."""
    return f"item:{item_id}"


def _count_item(fields: Fields, arguments: Sequence[str]) -> str:
    item_id, outcome = arguments
    if "total" not in fields:
        return "absent"
    if item_field(item_id) in fields:
        return "repeated"
    if fields.get("status") == DONE:
        return "over"
    fields[item_field(item_id)] = outcome
    done = int(fields.get("done", "0")) + 1
    fields["done"] = str(done)
    if outcome == "error":
        fields["errors"] = str(int(fields.get("errors", "0")) + 1)
    if done < int(fields["total"]) or int(fields["total"]) == 0 or fields.get("status") == CRAWLING:
        return "counted"
    fields["status"] = DONE
    return "finished"


COUNT_ITEM = Transition(
    name="count item",
    lua="""
        local key, item, outcome = KEYS[1], 'item:' .. ARGV[1], ARGV[2]
        local total = redis.call('HGET', key, 'total')
        if not total then return 'absent' end
        if redis.call('HEXISTS', key, item) == 1 then return 'repeated' end
        local status = redis.call('HGET', key, 'status')
        if status == 'DONE' then return 'over' end
        redis.call('HSET', key, item, outcome)
        local done = redis.call('HINCRBY', key, 'done', 1)
        if outcome == 'error' then redis.call('HINCRBY', key, 'errors', 1) end
        if done < tonumber(total) or tonumber(total) == 0 or status == 'CRAWLING' then return 'counted' end
        redis.call('HSET', key, 'status', 'DONE')
        return 'finished'
    """,
    python=_count_item,
)
"""Count an item of a job, whatever the number of its deliveries. Arguments: the item's id, and `ok` or `error`.

Says `finished` to exactly one caller, the one whose item was the last; otherwise `counted`, `repeated` when the item
was counted before, `over` when the job is done without it, or `absent` when there is no such job.
"""


def _close_total(fields: Fields, arguments: Sequence[str]) -> str:
    (total,) = arguments
    if "total" not in fields:
        return "absent"
    if fields.get("status") == DONE:
        return "over"
    fields["total"] = total
    if int(fields.get("done", "0")) < int(total):
        fields["status"] = WAITING
        return "waiting"
    fields["status"] = DONE
    return "finished"


CLOSE_TOTAL = Transition(
    name="close total",
    lua="""
        local key, total = KEYS[1], ARGV[1]
        if redis.call('HEXISTS', key, 'total') == 0 then return 'absent' end
        if redis.call('HGET', key, 'status') == 'DONE' then return 'over' end
        redis.call('HSET', key, 'total', total)
        if tonumber(redis.call('HGET', key, 'done') or '0') < tonumber(total) then
            redis.call('HSET', key, 'status', 'PROCESSING_WAIT')
            return 'waiting'
        end
        redis.call('HSET', key, 'status', 'DONE')
        return 'finished'
    """,
    python=_close_total,
)
"""No more items will be found. Argument: the final total.

Says `finished` when every item had been counted by then, so that a job whose items were quicker than their discovery
is not left undone; otherwise `waiting`, `over` when it is done already, or `absent`.
"""
