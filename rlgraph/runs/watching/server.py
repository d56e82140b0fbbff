"""Serves the page of runs on this machine alone, to whoever has its address: a token is part of it."""

from __future__ import annotations

import errno
import hmac
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake
from rlgraph.files import failure_reason
from rlgraph.runs.watching.page import live_page, runs_data
from rlgraph.runs.watching.run_reader import RunReader
from rlgraph.runs.watching.sample_pages import search, step_page

HOST = "127.0.0.1"
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class _Server(ThreadingHTTPServer):
    """A server that asks nobody for this machine's name, which may take seconds."""

    daemon_threads = True
    server_bind = TCPServer.server_bind


class WatchServer:
    """The server of one page. It answers from when it is made; `serve` answers until it is closed."""

    def __init__(self, readers: Sequence[RunReader], port: int | None = None) -> None:
        """port: the one to take, if it is free; any free one if not given. Raise UsageMistake if there is none."""
        self.readers = readers
        self.token = secrets.token_urlsafe(16)
        self.took_another = False
        """Whether the port that was asked for is in use, so that it took another one."""
        self._server = self._bound(port or 0)

    def _bound(self, port: int) -> ThreadingHTTPServer:
        try:
            return _Server((HOST, port), self._handler())
        except OSError as error:
            if error.errno == errno.EADDRINUSE and port:
                self.took_another = True
                return self._bound(0)
            message = f"nothing can be served on port {port}: {failure_reason(error)}"
            hint = "leave `--port` out, or write the page to a file with `--export`"
            raise UsageMistake(Diagnostic("E0877", message, NO_SPAN, hint)) from None

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://{HOST}:{self.port}/{self.token}/"

    def serve(self) -> None:
        """Answer until somebody calls `shutdown`, or until Ctrl-C."""
        self._server.serve_forever()

    def shutdown(self) -> None:
        """End `serve`, which another thread does."""
        self._server.shutdown()

    def close(self) -> None:
        """Give the port back."""
        self._server.server_close()

    def answer(self, path: str, asked: Mapping[str, str]) -> tuple[str, str] | None:
        """Return type and text of what a path below the token has; None for one that there is not. Raise ValueError
        for what no page asks."""
        if path == "":
            return "text/html", live_page(self.readers)
        if path == "data.json":
            stamp = [reader.stamp() for reader in self.readers]
            unchanged = asked.get("stamp") == json.dumps(stamp, separators=(",", ":"))
            return "application/json", json.dumps({"stamp": stamp} if unchanged else runs_data(self.readers))
        if path == "samples.json":
            return "application/json", json.dumps(self._samples(asked))
        return None

    def _samples(self, asked: Mapping[str, str]) -> dict[str, Any]:
        number = int(asked.get("run", "0"))
        if not 0 <= number < len(self.readers):
            raise ValueError("no such run")
        run = self.readers[number].path
        if asked.get("search"):
            return search(run, asked["search"], _number(asked.get("next"))).to_json()
        begin = max(0, _number(asked.get("next")) or 0)
        return step_page(run, _number(asked.get("step")), asked.get("order", ""), begin).to_json()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        served = self

        class Handler(BaseHTTPRequestHandler):
            """Answers the browser."""

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                token, _, path = parts.path.lstrip("/").partition("/")
                # Another site may have its name lead to this machine, but cannot name this machine by it.
                ours = self.headers.get("Host") in (f"{HOST}:{served.port}", f"localhost:{served.port}")
                if not ours or not hmac.compare_digest(token.encode(), served.token.encode()):
                    return self._send(
                        404, "text/plain", "no such page: the address that `rlgraph watch` printed has it"
                    )
                try:
                    answer = served.answer(path, dict(parse_qsl(parts.query)))
                except ValueError as error:
                    return self._send(400, "text/plain", str(error))
                if answer is None:
                    return self._send(404, "text/plain", "no such page")
                return self._send(200, *answer)

            def _send(self, status: int, kind: str, text: str) -> None:
                body = text.encode()
                try:
                    self.send_response(status)
                    for name, value in {
                        "Content-Type": f"{kind}; charset=utf-8",
                        "Content-Length": str(len(body)),
                        "Cache-Control": "no-store",
                        "Content-Security-Policy": _POLICY,
                        "Referrer-Policy": "no-referrer",
                        "X-Content-Type-Options": "nosniff",
                    }.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(body)
                except ConnectionError:
                    self.close_connection = True

            log_message: Callable[..., None] = lambda *_: None

        return Handler


def _number(text: str | None) -> int | None:
    return int(text) if text else None
