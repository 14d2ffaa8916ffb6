"""The outbox as tests read it: every row with its payload as the text that was saved."""

from refract.runtime.statements import Statement

OUTBOX = Statement(
    "outbox",
    "Reads the outbox.",
    "SELECT * FROM outbox ORDER BY id",
    # Long ones are packed there, and are as they were for whoever names them so.
    sqlite='SELECT *, payload AS "payload [PACKED]" FROM outbox ORDER BY id',
)
