"""Tells users what happened: what they find in their list, and what goes out of the house, in one transaction."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from refract.kernel.clock import Clock
from refract.kernel.ids import new_event_id
from refract.runtime.correlation import current_correlation_id
from refract.runtime.ports import Transaction
from refract.services.links.api import UrlDeleted
from refract.services.notifications.domain.digests import Line, digest_lines, digest_subject
from refract.services.notifications.domain.letters import letter_of_lines
from refract.services.notifications.domain.notices import LONGEST_TITLE, Notice, one_line
from refract.services.notifications.domain.preferences import Digest
from refract.services.notifications.store.deliveries import TELLS_OF, NewDelivery, add_deliveries
from refract.services.notifications.store.notifications import Kept, Meeting, add_notifications, meet_recipients
from refract.services.notifications.store.wishes import Wishes, find_wishes

log = logging.getLogger(__name__)

LONGEST_EMAIL = 320
MOST_AT_ONCE = 10
"""Mails that a user gets of one batch; more are one mail, as a digest is: links are made a thousand at a time."""
MANY = "digest"
FOOTER = "You choose which mails you get in your preferences."


class Telling:
    """Keeps notices for their users, and puts on its way what each of them wants.

    An instance without a mail server logs that it would have sent a mail (M5).
    """

    def __init__(self, clock: Clock, *, sends_mail: bool, base_url: str = "") -> None:
        self._clock = clock
        self._sends_mail = sends_mail
        self._base_url = base_url

    async def tell(self, tx: Transaction, notices: Sequence[Notice]) -> None:
        """Keep notices; the oldest is the first, so that the newest is the first of the list."""
        now = self._clock.now()
        ordered = sorted(notices, key=lambda notice: notice.occurred_at)
        await meet_recipients(tx, _meetings(ordered, now).values(), now)
        wishes = await find_wishes(tx, {notice.user_id for notice in ordered})
        ordered = [notice for notice in ordered if not wishes[notice.user_id].forgotten]
        kept = [self._kept(notice, wishes[notice.user_id]) for notice in ordered]
        await add_notifications(tx, kept, now)
        deliveries = self._mails(kept, wishes)
        deliveries += [call for each in kept for call in _calls(each, wishes[each.notice.user_id])]
        if deliveries:
            await add_deliveries(tx, deliveries, now)
        if not self._sends_mail:
            # After everything else that can fail: of a transaction that is repeated, the line should not be.
            _log_mails(kept, wishes)

    async def notice(
        self, tx: Transaction, *, user_id: str, event_type: str, title: str, payload: Mapping[str, Any], now: datetime
    ) -> None:
        """Tell a user something that no event of another service says."""
        told = Notice(
            user_id=user_id,
            event_type=event_type,
            event_id=new_event_id(),
            correlation_id=current_correlation_id(),
            title=one_line(title, LONGEST_TITLE),
            payload=payload,
            occurred_at=now,
        )
        await self.tell(tx, [told])

    def _kept(self, notice: Notice, wishes: Wishes) -> Kept:
        gathered = wishes.gathers and self._wants_word(notice, wishes)
        mailed = self._sends_mail and self._wants_word(notice, wishes)
        return Kept(new_event_id(), notice, "pending" if gathered or mailed else "sent", gathered)

    def _wants_word(self, notice: Notice, wishes: Wishes) -> bool:
        """Whether a mail is due, or the line that stands for it."""
        if self._sends_mail:
            return bool(wishes.email) and wishes.preferences.wants_mail(notice.event_type)
        return wishes.preferences.wants_line(notice.event_type)

    def _mails(self, kept: Sequence[Kept], wishes: Mapping[str, Wishes]) -> list[NewDelivery]:
        """The mails that leave now: one for each notice, or one for many."""
        by_user: defaultdict[str, list[Kept]] = defaultdict(list)
        for each in kept:
            user_id = each.notice.user_id
            if self._sends_mail and not each.gathered and self._wants_word(each.notice, wishes[user_id]):
                by_user[user_id].append(each)
        mails = []
        for user_id, told in by_user.items():
            email = wishes[user_id].email
            if len(told) > MOST_AT_ONCE:
                lines = [Line(each.notice.event_type, each.notice.title) for each in told]
                mails.append(mail_of_many(user_id, email, Digest.OFF, lines, [each.id for each in told]))
            else:
                mails += [self._mail(each, email) for each in told]
        return mails

    def _mail(self, kept: Kept, email: str) -> NewDelivery:
        notice = kept.notice
        lines = (notice.title, *notice.details)
        letter = letter_of_lines(notice.title, lines, link=self._link(notice), footer=FOOTER)
        return NewDelivery(
            channel="email",
            recipient=email,
            subject=letter.subject,
            text=letter.text,
            html=letter.html,
            **_shared(kept),
        )

    def _link(self, notice: Notice) -> str:
        """The short URL that it is about, unless it leads nowhere any more."""
        if not self._base_url or not notice.short_code or notice.event_type == UrlDeleted.routing_key():
            return ""
        return f"{self._base_url}/{notice.short_code}"


def _calls(kept: Kept, wishes: Wishes) -> list[NewDelivery]:
    """The webhooks that are told."""
    return [
        NewDelivery(channel="webhook", recipient=webhook.id, payload=kept.notice.data, **_shared(kept))
        for webhook in wishes.webhooks
        if kept.notice.event_type in webhook.events
    ]


def _shared(kept: Kept) -> dict[str, Any]:
    notice = kept.notice
    return {
        "source_event_id": notice.event_id,
        "kind": notice.event_type,
        "user_id": notice.user_id,
        "notification_id": kept.id,
        "correlation_id": notice.correlation_id,
    }


def mail_of_many(
    user_id: str, email: str, every: Digest, lines: Sequence[Line], notifications: Sequence[str]
) -> NewDelivery:
    """One mail of many notifications, the oldest first."""
    subject = digest_subject(every, lines)
    letter = letter_of_lines(subject, (subject, *digest_lines(lines)), footer=FOOTER)
    return NewDelivery(
        # Named by what it tells of first, which no other does.
        source_event_id=f"{MANY}:{notifications[0]}",
        channel="email",
        kind=MANY,
        recipient=email,
        user_id=user_id,
        subject=letter.subject,
        text=letter.text,
        html=letter.html,
        payload={TELLS_OF: list(notifications)},
    )


def _meetings(notices: Sequence[Notice], now: datetime) -> dict[str, Meeting]:
    """What these say of their users: how many there are, and the last address."""
    meetings: dict[str, Meeting] = {}
    for notice in notices:
        before = meetings.get(notice.user_id)
        email = one_line(notice.user_email, LONGEST_EMAIL)
        # An event from a clock that is ahead must not keep the address of a later one out for long.
        email_at = min(notice.occurred_at, now)
        unread = 1
        if before is not None:
            unread += before.unread
            email, email_at = (email, email_at) if email else (before.email, before.email_at)
        meetings[notice.user_id] = Meeting(notice.user_id, email, email_at, unread)
    return meetings


def _log_mails(kept: Sequence[Kept], wishes: Mapping[str, Wishes]) -> None:
    for each in kept:
        wanted = wishes[each.notice.user_id]
        if wanted.preferences.wants_line(each.notice.event_type) and not each.gathered:
            log_mail(each.notice.event_type, wanted.email, each.notice.title, each.notice.correlation_id)


def log_mail(event_type: str, email: str, text: str, correlation_id: str) -> None:
    """M5's line in place of a mail. Its field `message` is `text` here: Python's log has one of that name already."""
    fields = {"correlation_id": correlation_id, "event_type": event_type, "user_email": email, "text": text}
    log.info("would send email to user", extra=fields)
