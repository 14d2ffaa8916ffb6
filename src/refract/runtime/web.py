"""Web applications: routes, errors to statuses, bodies to records, and whether a service is ready."""

import logging
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from litestar import Litestar, Request, Response, get
from litestar.exceptions import HTTPException, ValidationException
from litestar.exceptions.http_exceptions import RequestEntityTooLarge
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

from refract import __version__
from refract.kernel.errors import BodyTooLarge, Invalid, Kind, Limited, NotFound, RefractError
from refract.runtime.client_address import ClientAddresses, Network
from refract.runtime.edge import Application, Edge, Receive, Scope, Send, answer
from refract.runtime.metrics import CONTENT_TYPE, Metrics
from refract.runtime.readiness import OK, Check, Readiness
from refract.runtime.request_log import EVERY_LINE
from refract.runtime.windows import OverLimit

log = logging.getLogger(__name__)

STATUSES = {
    Kind.INVALID: 400,
    Kind.UNAUTHENTICATED: 401,
    Kind.FORBIDDEN: 403,
    Kind.NOT_FOUND: 404,
    Kind.NOT_ALLOWED: 405,
    Kind.CONFLICT: 409,
    Kind.GONE: 410,
    Kind.TOO_LARGE: 413,
    Kind.UNPROCESSABLE: 422,
    Kind.LIMITED: 429,
    Kind.INTERNAL: 500,
    Kind.UPSTREAM: 502,
    Kind.UNAVAILABLE: 503,
}

BODY_LIMIT = 1024 * 1024

BEARER = "bearer"
"""The name that documents have for our tokens; routes that want one say `security=WANTS_TOKEN`."""

WANTS_TOKEN: list[dict[str, list[str]]] = [{BEARER: []}]

DISCONNECTED = "client disconnected prematurely"
"""Litestar's words for a client that left before the end of its body, in an error of ours."""

_DOCUMENTED = "documented"
_JSONS = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", " | ": " or "}
_PYTHONS = re.compile(r"\b(?:str|int|float|bool)\b| \| ")
UNREADABLE = "invalid request body"


def takes_body(limit: int, *, documented: bool = True) -> dict[str, Any]:
    """Options for a route: a body of at most `limit` bytes, over which a documented one answers 400 (decision 23)."""
    return {"request_max_body_size": limit, "opt": {_DOCUMENTED: documented}}


def build_app(  # noqa: PLR0913  # all that services differ in
    service: str,
    routes: Sequence[Any],
    *,
    ready: Mapping[str, Check],
    metrics: Metrics | None = None,
    show_metrics: bool = True,
    trusted_proxies: Sequence[Network] = (),
    dependencies: Mapping[str, Any] | None = None,
    log_samples: Mapping[str, float] = EVERY_LINE,
    describes_itself: bool = True,
) -> Edge:
    """The application of a service: its own routes, /health, /ready, and /metrics where it is shown.

    It describes its routes at /docs/openapi.json, unless it has a document there that says more.
    """
    own: list[Any] = [_ready_route(ready)]
    if metrics is not None and show_metrics:
        own.append(_metrics_route(metrics))
    app = Litestar(
        [*routes, *own],
        dependencies=dependencies,
        exception_handlers={Exception: render_error},
        logging_config=None,
        openapi_config=_description(service) if describes_itself else None,
        request_class=JsonRequest,
        request_max_body_size=BODY_LIMIT,
    )
    addresses = ClientAddresses(trusted_proxies)
    return Edge(app, service, metrics=metrics, addresses=addresses, samples=log_samples)


def _description(service: str) -> OpenAPIConfig:
    return OpenAPIConfig(
        title=service,
        version=__version__,
        path="/docs",
        render_plugins=[JsonRenderPlugin(path="/openapi.json")],
        components=Components(
            security_schemes={BEARER: SecurityScheme(type="http", scheme="bearer", bearer_format="JWT")}
        ),
    )


def json_answer(content: object) -> Application:
    """A 200 that is ready to leave, for what is asked for often: the framework's takes longer than to encode a page."""
    body = msgspec.json.encode(content)

    async def leave(_scope: Scope, _receive: Receive, send: Send) -> None:
        await answer(send, 200, body)

    return leave


def metrics_app(metrics: Metrics) -> Application:
    """A tiny application that only shows metrics, for an address of its own (METRICS_ADDR)."""

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["path"] == "/metrics":
            await answer(send, 200, metrics.exposition(), CONTENT_TYPE.encode())
        else:
            await answer(send, 404, _error(NotFound.message))

    return app


class JsonRequest(Request[Any, Any, Any]):
    """Reads a body straight into the record that the handler asks for, and strictly: "5" is no number."""

    async def json(self) -> Any:
        """The body as the type of the handler's `data`, or as anything where it has none."""
        field = self.route_handler.parsed_data_field
        try:
            return _decoder(Any if field is None else field.annotation).decode(await self.body())
        except msgspec.ValidationError as error:
            raise Invalid(f"{UNREADABLE}: {explain(error)}") from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Invalid(UNREADABLE) from error


def render_error(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Any error as an answer: the status of its kind, the public message, and nothing else."""
    if isinstance(error, BodyTooLarge | RequestEntityTooLarge):
        documented = request.route_handler.opt.get(_DOCUMENTED, False)
        return _error_response(400 if documented else 413, BodyTooLarge.message)
    if isinstance(error, RefractError):
        return _render_ours(request, error)
    if isinstance(error, HTTPException) and error.status_code < 500:
        return _render_litestars(error)
    if isinstance(error, HTTPException) and error.detail == DISCONNECTED:
        return _error_response(400, error.detail)  # nobody reads it
    _log_failure(request, error)
    return _error_response(500, RefractError.message)


def _render_ours(request: Request[Any, Any, Any], error: RefractError) -> Response[Any]:
    headers: dict[str, str] = {}
    if error.kind is Kind.INTERNAL:
        _log_failure(request, error)
    elif error.kind in {Kind.UPSTREAM, Kind.UNAVAILABLE}:
        log.warning("request failed: %s", error, extra={"method": request.method, "path": request.scope["path"]})
    elif isinstance(error, OverLimit):
        headers.update((name.decode(), value.decode()) for name, value in error.fields)
    elif isinstance(error, Limited):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    return _error_response(STATUSES[error.kind], error.message, headers)


def _render_litestars(error: HTTPException) -> Response[Any]:
    message = error.detail.lower()  # "Not Found", "Method Not Allowed"
    if isinstance(error, ValidationException):
        message = _explain_parameters(error)
    return _error_response(error.status_code, message, error.headers)


def _error(message: str) -> bytes:
    return msgspec.json.encode({"error": message})


def _error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response[bytes]:
    return Response(_error(message), status_code=status, headers=headers, media_type="application/json")


def _log_failure(request: Request[Any, Any, Any], error: Exception) -> None:
    log.error("request failed", exc_info=error, extra={"method": request.method, "path": request.scope["path"]})


@lru_cache(maxsize=512)
def _decoder(annotation: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(annotation)


def explain(error: msgspec.ValidationError) -> str:
    """ "Expected `str | null`, got `int` - at `$.url`" as "url: expected string or null, got integer"."""
    what, _, where = str(error).replace("`", "").partition(" - at ")
    what = _in_words_of_json(what)
    field = where.removeprefix("$").removeprefix(".")
    return f"{field}: {what}" if field else what


def _explain_parameters(error: ValidationException) -> str:
    """The first parameter that does not fit, or the body that is missing."""
    if not isinstance(error.extra, list) or not error.extra:
        return Invalid.message
    detail = error.extra[0]
    if detail.get("source") == "body":
        return UNREADABLE
    message = _in_words_of_json(str(detail.get("message", "")).replace("`", ""))
    return f"invalid request: {detail.get('key')}: {message}"


def _in_words_of_json(message: str) -> str:
    if message.startswith("Expected "):
        message = _PYTHONS.sub(lambda word: _JSONS[word[0]], message)
    return message[:1].lower() + message[1:]


def _ready_route(checks: Mapping[str, Check]) -> Any:
    readiness = Readiness(checks)

    @get("/ready", include_in_schema=False)
    async def ready() -> Response[bytes]:
        answers = await readiness.report()
        is_ready = all(answer == OK for answer in answers.values())
        report = {"status": "ready" if is_ready else "not ready", "checks": answers}
        return Response(
            msgspec.json.encode(report), status_code=200 if is_ready else 503, media_type="application/json"
        )

    return ready


def _metrics_route(metrics: Metrics) -> Any:
    @get("/metrics", include_in_schema=False)
    async def show_metrics() -> Response[bytes]:
        return Response(metrics.exposition(), media_type=CONTENT_TYPE)

    return show_metrics
