"""Who may read the statistics of a link (decision 12)."""

from dataclasses import dataclass
from typing import ClassVar

from refract.kernel.errors import Forbidden, Kind, NotFound, RefractError, Unauthenticated


class Closed(RefractError):
    """The link is deleted: its numbers are its owner's alone from then on."""

    kind: ClassVar[Kind] = Kind.GONE
    message = "this link is no longer active"


@dataclass(frozen=True, slots=True)
class Visibility:
    """What decides who may read. A link of which nothing has been heard yet has no row, and an owner nobody knows."""

    is_known: bool
    user_id: str
    stats_public: bool
    is_deleted: bool

    def check_owner(self, user_id: str) -> None:
        """Let nobody pass but the owner."""
        if not self.is_known:
            raise NotFound
        if not self.is_owned_by(user_id):
            raise Forbidden

    def check_reader(self, user_id: str | None, *, instance_is_public: bool) -> None:
        """Let everybody pass while the link is there and open; the owner always."""
        if user_id is not None and self.is_owned_by(user_id):
            return
        if self.is_deleted:
            raise Closed
        if instance_is_public and self.stats_public:
            return
        if user_id is None:
            raise Unauthenticated
        self.check_owner(user_id)

    def is_owned_by(self, user_id: str) -> bool:
        """Whether it is this user's; one whose owner has left is nobody's."""
        return self.is_known and bool(user_id) and self.user_id == user_id
