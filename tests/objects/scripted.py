"""A real HTTP server on loopback that answers S3 requests as a test wrote it down."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True, slots=True)
class Answer:
    status: int = 200
    code: str = ""
    """The code of an S3 error document; empty for `body` as it is."""
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    dropped: bool = False
    """Close the connection without a word."""
    hang: threading.Event | None = None
    """Wait for this before answering."""

    def content(self) -> bytes:
        if not self.code:
            return self.body
        return f"<Error><Code>{self.code}</Code><Message>as told</Message></Error>".encode()


@dataclass(frozen=True, slots=True)
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class ScriptedS3:
    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.answers: deque[Answer] = deque()
        self.seen: list[Seen] = []


@contextmanager
def scripted_s3() -> Iterator[ScriptedS3]:
    class Handler(BaseHTTPRequestHandler):
        # As of 1.1 it answers "Expect: 100-continue", for which the client waits a second.
        protocol_version = "HTTP/1.1"

        def serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            script.seen.append(Seen(self.command, self.path, headers, body))
            answer = script.answers.popleft()
            self.close_connection = True
            if answer.hang:
                answer.hang.wait(10)
            elif not answer.dropped:
                self.reply(answer)

        do_GET = do_PUT = do_POST = do_DELETE = serve

        def reply(self, answer: Answer) -> None:
            content = answer.content()
            fields = {"Connection": "close", "Content-Length": str(len(content)), **answer.headers}
            self.send_response_only(answer.status)
            for name, value in fields.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        script = ScriptedS3(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield script
        finally:
            server.shutdown()
            thread.join()
