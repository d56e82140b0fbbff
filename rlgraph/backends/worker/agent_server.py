"""Serves models to agents as OpenAI's API has it, on this machine alone."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rlgraph.backends.worker.agent_answers import AgentAnswer, answer_body, answer_events, error_body
from rlgraph.backends.worker.agent_requests import CHAT, COMPLETIONS, AgentRequest, RequestRefused, read_request

LARGEST_BYTES = 1 << 25
"""The largest request."""

Ask = Callable[[AgentRequest], AgentAnswer]
"""Answers a request, once it is sampled. Raises RequestRefused."""


class AgentServer:
    """A server on a free port of the loopback interface. Each episode has a token, which says whose a request is."""

    def __init__(self) -> None:
        self._asked: dict[str, tuple[Sequence[str], Ask]] = {}
        """For each token the names of the models, and who answers."""
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.lookup = self._asked.get
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def base_url(self) -> str:
        """What a client is given."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def open_session(self, models: Sequence[str], ask: Ask) -> str:
        """Return the token of a new session, whose requests are answered by `ask`."""
        token = secrets.token_urlsafe(24)
        self._asked[token] = models, ask
        return token

    def close_session(self, token: str) -> None:
        """Answer no more requests with this token."""
        self._asked.pop(token, None)

    def close(self) -> None:
        """Stop."""
        self._http.shutdown()
        self._http.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    lookup: Callable[[str], tuple[Sequence[str], Ask] | None]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that has gone is seen by whoever plays its episode."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # The headers and the body of an answer go out together, and not after the client's delayed acknowledgement.
    wbufsize = -1
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """Answer which models there are."""
        try:
            names, _ = self._session()
            if self.path.partition("?")[0] != "/v1/models":
                raise RequestRefused(f"there is no {self.path}", "not_found", 404)
            models = [{"id": name, "object": "model", "created": 0, "owned_by": "rlgraph"} for name in names]
            self._send(200, {"object": "list", "data": models})
        except RequestRefused as refused:
            self._send(refused.status, error_body(refused.message, refused.code))

    def do_POST(self) -> None:
        """Answer a request for completions."""
        try:
            body = self._body()
            _, ask = self._session()
            path = self.path.partition("?")[0]
            if path not in (CHAT, COMPLETIONS):
                raise RequestRefused(f"there is no {path}: there are {CHAT} and {COMPLETIONS}", "not_found", 404)
            request = read_request(path, body)
            answer = ask(request)
        except RequestRefused as refused:
            self._send(refused.status, error_body(refused.message, refused.code))
            return
        if not request.streams:
            self._send(200, answer_body(request, answer))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for event in answer_events(request, answer):
            self.wfile.write(event.encode())
        self.close_connection = True

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > LARGEST_BYTES:
            # What was not read would be taken for the next request.
            self.close_connection = True
            raise RequestRefused(f"a request says its length, of at most {LARGEST_BYTES} bytes", status=413)
        return self.rfile.read(int(length))

    def _session(self) -> tuple[Sequence[str], Ask]:
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        session = self.server.lookup(token.strip()) if kind.lower() == "bearer" else None
        if session is None:
            message = "no episode has this key: give the client the `api_key` of the episode, while it runs"
            raise RequestRefused(message, "invalid_api_key", 401)
        return session

    def _send(self, status: int, body: dict[str, Any]) -> None:
        written = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(written)))
        self.end_headers()
        self.wfile.write(written)
