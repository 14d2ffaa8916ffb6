"""Builds the rooms of sms into one service."""

from refract.runtime.ports import StateStore
from refract.runtime.service import Foundation, Service, Task, compose
from refract.services.sms.api import NOTIFICATION_EVENTS, OUTBOUND, WIRE_NAME
from refract.services.sms.commands.auditing import AuditTrail
from refract.services.sms.commands.clearing import Clearing
from refract.services.sms.commands.configuring import Configuring
from refract.services.sms.commands.copying import Copies
from refract.services.sms.commands.sending import Sending
from refract.services.sms.http.auditing import audit_routes
from refract.services.sms.http.routes import sms_routes
from refract.services.sms.queries.attempts import AttemptQueries
from refract.services.sms.queries.summaries import SummaryQueries
from refract.services.sms.reactions import record_readers
from refract.services.sms.settings import SmsSettings


def build_sms(foundation: Foundation, settings: SmsSettings, state: StateStore | None) -> Service:
    """The service on the foundation it is given; without a `state` every send goes behind the lock."""
    database, clock, records = foundation.database, foundation.clock, foundation.records
    assert records is not None, "it writes topics, in both modes"
    copies = Copies(database, state, clock) if state is not None and settings.fast_path else None
    return compose(
        WIRE_NAME,
        foundation,
        routes=sms_routes(
            Configuring(database, copies, clock),
            Sending(database, records, copies, AuditTrail(records), clock),
            audit_routes(AttemptQueries(database), SummaryQueries(database, clock), clock),
        ),
        topics=(OUTBOUND, NOTIFICATION_EVENTS),
        tasks=[
            *record_readers(records, database, clock, foundation.metrics),
            Task("clearing", Clearing(database, clock, audit_kept=settings.audit_kept).run),
        ],
    )
