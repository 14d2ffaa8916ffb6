"""Builds the rooms of notifications into one service."""

from refract.runtime.service import Foundation, Service, Task, compose
from refract.services.notifications.api import WIRE_NAME
from refract.services.notifications.commands.delivering import build_delivering
from refract.services.notifications.commands.digesting import Digesting
from refract.services.notifications.commands.mailing import Mailing
from refract.services.notifications.commands.preferring import Preferring
from refract.services.notifications.commands.reading import Reading
from refract.services.notifications.commands.sweeping import Sweeper
from refract.services.notifications.commands.telling import Telling
from refract.services.notifications.http.notifications import notification_routes
from refract.services.notifications.http.preferences import preference_routes
from refract.services.notifications.http.routes import owner_routes
from refract.services.notifications.queries.notifications import NotificationQueries
from refract.services.notifications.queries.preferences import PreferenceQueries
from refract.services.notifications.reactions import QUEUES, departures, link_events, mail_requests
from refract.services.notifications.settings import NotificationSettings


def build_notifications(foundation: Foundation, settings: NotificationSettings) -> Service:
    """The service on the foundation it is given."""
    database, clock = foundation.database, foundation.clock
    sending, sends_mail = settings.sending, settings.sending.mail is not None
    telling = Telling(clock, sends_mail=sends_mail, base_url=settings.base_url)
    preferring = Preferring(database, clock, allow_private=sending.allow_private)
    return compose(
        WIRE_NAME,
        foundation,
        routes=owner_routes(
            foundation.tokens,
            [
                *notification_routes(NotificationQueries(database), Reading(database, clock)),
                *preference_routes(PreferenceQueries(database), preferring),
            ],
        ),
        queues=QUEUES,
        reactions=[link_events(telling), mail_requests(Mailing(clock, has_server=sends_mail)), departures()],
        tasks=[
            *build_delivering(database, clock, foundation.metrics, sending, telling.notice),
            Task("digests", Digesting(database, clock, sends_mail=sends_mail).run),
            Task("sweeper", Sweeper(database, clock, settings.retention).run),
        ],
    )
