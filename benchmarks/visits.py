"""The clicks that are counted: made up from a fixed seed, as unequal as those of real links and visitors are."""

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import accumulate

from benchmarks.links import EMAIL, OWNER
from refract.kernel.events import encode_batch
from refract.kernel.ids import new_event_id
from refract.runtime.messages import Message
from refract.services.links.api import UrlClicked

SEED = 5
VISITORS, AGENTS, PAGES, CAMPAIGNS = 50_000, 200, 400, 40

_SYSTEMS = (
    "Windows NT 10.0; Win64; x64",
    "Macintosh; Intel Mac OS X 10_15_7",
    "X11; Linux x86_64",
    "Linux; Android 14; Pixel 8",
)
_BROWSER = "Mozilla/5.0 ({}) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/{}.0.0.0 Safari/537.36"
_BOT = "Mozilla/5.0 (compatible; Googlebot/2.{}; +http://www.google.com/bot.html)"
_LANGUAGES = ("en-US,en;q=0.9", "de-CH,de;q=0.9,en;q=0.8", "fr-FR,fr;q=0.9", "pt-BR,pt;q=0.9", "ja-JP,ja;q=0.9", "")


class Visits:
    """Clicks on some links: the first of them has most, and every link has some."""

    def __init__(self, codes: Sequence[str], seed: int = SEED) -> None:
        self._chance = random.Random(seed)
        self._codes = codes
        self._weights = list(accumulate(1 / (place + 12) for place in range(len(codes))))
        self._agents = [
            _BOT.format(number) if number % 12 == 0 else _BROWSER.format(_SYSTEMS[number % 4], 100 + number % 40)
            for number in range(AGENTS)
        ]
        self._pages = ["", *(f"https://news{number % 60}.example/articles/{number}" for number in range(PAGES))]
        self._campaigns = ["", "", "", *(f"utm_source=letter&utm_campaign=week-{n}" for n in range(CAMPAIGNS))]

    def requests(self, count: int) -> Iterator[bytes]:
        """So many requests of visitors for links, as a proxy that we trust passes them on."""
        for event in self.events(count, datetime.now(UTC)):
            referer = f"Referer: {event.referer}\r\n" if event.referer else ""
            yield (
                f"GET /{event.short_code}{f'?{event.query}' if event.query else ''} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                f"X-Forwarded-For: {event.ip_anonymized[:-1]}{self._chance.randrange(1, 250)}\r\n"
                f"User-Agent: {event.user_agent}\r\nAccept-Language: {event.accept_language}\r\n{referer}\r\n"
            ).encode()

    def events(self, count: int, now: datetime) -> Iterator[UrlClicked]:
        """So many clicks that happen now, as the redirect announces them."""
        chance = self._chance
        for code in chance.choices(self._codes, cum_weights=self._weights, k=count):
            visitor = chance.randrange(VISITORS)
            number = new_event_id()
            yield UrlClicked(
                short_code=code,
                user_id=OWNER,
                user_email=EMAIL,
                ip_hash=f"{visitor * 0x9E3779B97F4A7C15 & (1 << 64) - 1:016x}" * 4,
                ip_anonymized=f"{1 + visitor % 220}.{visitor // 220 % 250}.0.0",
                user_agent=self._agents[visitor % AGENTS],
                referer=self._pages[chance.randrange(PAGES + 1)],
                query=self._campaigns[chance.randrange(len(self._campaigns))],
                accept_language=_LANGUAGES[visitor % len(_LANGUAGES)],
                occurred_at=now,
                event_id=number,
                correlation_id=number,
            )


def packed(events: Sequence[UrlClicked]) -> Message:
    """Clicks that were written together, as one message (decision 7)."""
    return Message(
        exchange=UrlClicked.exchange,
        routing_key=UrlClicked.routing_key(),
        body=encode_batch(events),
        message_id=new_event_id(),
    )
