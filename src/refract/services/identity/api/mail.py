"""The mails that identity asks for, as events: notifications sends them (002)."""

from msgspec import Struct

from refract.kernel.events import Moment, PlatformEvent


class Mail(Struct, frozen=True, kw_only=True):
    """One mail: whom it is for, what it is about, and the link that works once and until `expires_at`."""

    recipient: str
    subject: str
    template: str
    link: str
    expires_at: Moment


class EmailVerificationRequested(PlatformEvent, frozen=True, kw_only=True, tag="email.verification.requested"):
    """Somebody registered with this address, and is asked whether it is theirs."""

    user_id: str
    data: Mail


class EmailPasswordResetRequested(PlatformEvent, frozen=True, kw_only=True, tag="email.password_reset.requested"):
    """The owner of an account wants to choose a new password."""

    user_id: str
    data: Mail
