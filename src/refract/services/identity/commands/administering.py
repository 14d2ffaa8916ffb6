"""What whoever runs the instance does to accounts: make one, change its role, suspend it, end it, list the newest."""

from collections.abc import Callable
from datetime import datetime

from refract.kernel.clock import Clock
from refract.kernel.errors import NotFound
from refract.runtime.ports import Database, Transaction
from refract.runtime.statements import Statement
from refract.runtime.tokens import Role
from refract.services.identity.adapters.hashing import Hasher
from refract.services.identity.commands.deleting import erase, hold_administrators
from refract.services.identity.commands.revoking import revoke_all
from refract.services.identity.domain.accounts import Status, User, checked_email, normalized_email
from refract.services.identity.domain.passwords import check_password
from refract.services.identity.settings import Policy
from refract.services.identity.store import COLUMNS, Users, user_of

NEWEST = Statement(
    "newest_users",
    "Lists accounts, the newest first.",
    f"SELECT {', '.join(COLUMNS)} FROM users ORDER BY created_at DESC, id DESC LIMIT :most",  # noqa: S608  # names
)


class Administering:
    """Accounts in the hands of an operator, who needs no token: the database is theirs."""

    def __init__(self, database: Database, hasher: Hasher, policy: Policy, clock: Clock) -> None:
        self._database = database
        self._hasher = hasher
        self._policy = policy
        self._clock = clock
        self._users = Users()

    async def create(self, email: str, password: str, *, role: Role = "user") -> User:
        """A new account, its address taken as verified because the operator vouches for it; raises EmailTaken."""
        address = checked_email(email)
        check_password(password, self._policy)
        password_hash = await self._hasher.hash(password)
        now = self._clock.now()
        user = User.local(address, password_hash, now, role=role).verified(now)
        async with self._database.transaction() as tx:
            await self._users.add(tx, user)
        return user

    async def change_role(self, who: str, role: Role) -> tuple[User, bool]:
        """The account with this role, and whether it had another. Rights that are taken away die with their tokens."""
        return await self._change(who, lambda user, now: user.with_role(role, now), ends_tokens=role == "user")

    async def change_status(self, who: str, status: Status) -> tuple[User, bool]:
        """The account suspended, with all its tokens ended, or active again; and whether it was not."""
        return await self._change(
            who, lambda user, now: user.with_status(status, now), ends_tokens=status == "suspended"
        )

    async def delete(self, who: str) -> tuple[User, bool]:
        """What is left of the account, and whether it was there; raises LastAdministrator."""
        async with self._database.transaction() as tx:
            administrators = await hold_administrators(tx)
            before = await self._find(tx, who)
            if before.status == "deleted":
                return before, False
            return await erase(tx, before, administrators, self._clock.now()), True

    async def newest(self, most: int) -> list[User]:
        """The accounts made last, the newest first."""
        return [user_of(row) for row in await self._database.fetch(NEWEST, most=most)]

    async def _change(
        self, who: str, change: Callable[[User, datetime], User], *, ends_tokens: bool
    ) -> tuple[User, bool]:
        now = self._clock.now()
        async with self._database.transaction() as tx:
            before = await self._find(tx, who)
            if before.status == "deleted":
                raise NotFound("the account is deleted")
            after = change(before, now)
            if after is not before:
                await self._users.save(tx, after)
                if ends_tokens:
                    await revoke_all(tx, after.id, now)
        return after, after is not before

    async def _find(self, tx: Transaction, who: str) -> User:
        """An account by its address, or by its id, which is the only way to name one of another issuer."""
        if "@" not in who:
            return await self._get(tx, who)
        user = await self._users.find_locked(tx, normalized_email(who))
        if user is None:
            raise NotFound("no account signs in here with that address")
        return user

    async def _get(self, tx: Transaction, user_id: str) -> User:
        try:
            return await self._users.get(tx, user_id.strip())
        except NotFound:
            raise NotFound("there is no account with that id; an address has an @") from None
