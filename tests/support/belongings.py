"""Alice, who has all that somebody can have here, and Bob, who is to see and change none of it."""

import secrets
from dataclasses import dataclass

from refract.kernel.clock import SystemClock
from refract.services.analytics.commands.following import follow_links
from refract.services.identity.commands.mailing import KEEP_TOKEN
from refract.services.identity.domain.one_time import OneTimeToken, Purpose, token_hash
from refract.services.links.api import UrlCreated
from refract.services.notifications.commands.telling import Telling
from refract.services.notifications.domain.notices import Notice
from tests.support.houses import GATEWAY, House

ALICES_PASSWORD = "the password that alice has"
BOBS_PASSWORD = "the password that bob has"
SECRETS = {"title": "alices-title", "notes": "alices-notes", "tags": ["alices-tag"]}
KEY = "Idempotency-Key: the-key-of-both"
HOOK = "https://hooks.example.com/alices-hook"


@dataclass(frozen=True)
class Person:
    """Somebody with an account."""

    id: str
    email: str
    password: str


@dataclass(frozen=True)
class Hers:
    """What is Alice's, and must stay so."""

    alice: Person
    code: str
    url: str
    cursor: str
    reset: str
    """A token that was mailed to Bob, who may reset his own password with it."""
    verification: str
    """The same for his address."""
    notification: str
    webhook: str
    key: str
    """The id of an API key."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Words by which an answer shows that something of hers was read."""
        named = ("alices-title", "alices-notes", "alices-tag", "alices-key", HOOK)
        return (self.alice.id, self.alice.email, self.url, *named)

    def id_for(self, path: str) -> str:
        """What stands for the id of something of hers in a path."""
        return self.key if path.startswith("/keys") else self.notification


async def settle(house: House) -> tuple[Hers, Person]:
    """Alice with links of hers, and Bob."""
    alice = await _register(house, "alice", ALICES_PASSWORD)
    bob = await _register(house, "bob", BOBS_PASSWORD)
    made, url = [], f"https://example.com/{secrets.token_hex(8)}"
    for number in range(2):
        body = {"url": f"{url}/{number}", **SECRETS}
        headers = (KEY,) if number == 0 else ()
        answer = await house.call(
            GATEWAY, "POST", "/api/shorten", body, *headers, token=house.token(alice.id, alice.email)
        )
        assert answer.status == 201, answer.body
        made.append(answer.json["short_code"])
    await _make_known(house, alice, made[0])
    page = await house.call(GATEWAY, "GET", "/api/urls?limit=1", token=house.token(alice.id, alice.email))
    return Hers(
        alice,
        made[0],
        f"{url}/0",
        page.json["next_cursor"],
        await _mailed(house, Purpose.RESET, bob),
        await _mailed(house, Purpose.VERIFY, bob),
        await _notified(house, alice, made[0]),
        await _hooked(house, alice),
        await _keyed(house, alice),
    ), bob


async def _register(house: House, name: str, password: str) -> Person:
    """A new account, under a name that nobody has."""
    email = f"{name}-{len(await house.rows('identity'))}@example.com"
    body = {"email": email, "password": password}
    answer = await house.call(GATEWAY, "POST", "/api/auth/register", body)
    assert answer.status == 201, answer.body
    return Person(answer.json["user_id"], email, password)


async def _mailed(house: House, purpose: Purpose, person: Person) -> str:
    """A one-time token as somebody finds it in a mail."""
    issued = OneTimeToken.issue(purpose, person.id, SystemClock().now())
    async with house.databases["identity"].transaction() as tx:
        await tx.execute(
            KEEP_TOKEN,
            token_hash=token_hash(issued.text),
            user_id=person.id,
            purpose=purpose.value,
            expires_at=issued.expires_at,
            created_at=issued.created_at,
        )
    return issued.text


async def _make_known(house: House, person: Person, code: str) -> None:
    """Let analytics know whose a link is, as it hears it from links."""
    event = UrlCreated(
        occurred_at=SystemClock().now(),
        event_id=UrlCreated.new_id(),
        short_code=code,
        original_url="https://example.com/",
        user_id=person.id,
        user_email=person.email,
        title="alices-title",
        order=1,
    )
    async with house.databases["analytics"].transaction() as tx:
        await follow_links(tx, [event])


async def _notified(house: House, person: Person, code: str) -> str:
    """The id of something that somebody was told."""
    notice = Notice(
        user_id=person.id,
        user_email=person.email,
        event_type="url.deleted",
        event_id=secrets.token_hex(8),
        title="alices-title",
        occurred_at=SystemClock().now(),
        payload={},
        short_code=code,
    )
    async with house.databases["notifications"].transaction() as tx:
        await Telling(SystemClock(), sends_mail=False).tell(tx, [notice])
    page = await house.call(GATEWAY, "GET", "/api/notifications", token=house.token(person.id, person.email))
    identifier: str = page.json["notifications"][0]["id"]
    return identifier


async def _hooked(house: House, person: Person) -> str:
    """The id of a webhook that somebody has."""
    body, token = {"webhooks": [{"url": HOOK}]}, house.token(person.id, person.email)
    answer = await house.call(GATEWAY, "PUT", "/api/preferences", body, token=token)
    identifier: str = answer.json["webhooks"][0]["id"]
    return identifier


async def _keyed(house: House, person: Person) -> str:
    """The id of an API key that somebody has."""
    body, token = {"name": "alices-key", "scopes": ["links:read"]}, house.token(person.id, person.email)
    answer = await house.call(GATEWAY, "POST", "/api/keys", body, token=token)
    assert answer.status == 201, answer.body
    return str(answer.json["id"])


async def belonging_to(house: House, hers: Hers, service: str) -> list[str]:
    """The rows of a service that speak of Alice or of her links. That somebody asked for a mail to her may be noted."""
    marks = (hers.alice.id, hers.alice.email, f"'{hers.code}'")
    rows = await house.rows(service)
    return [row for row in rows if any(mark in row for mark in marks) and "identity.reset.asked" not in row]
