"""As much of the Hugging Face hub as a snapshot download and a look at tensor headers need, served on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubServer(ThreadingHTTPServer):
    """Holds `files` in every repository but a few whose names say what is wrong with them."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.asked: list[tuple[str, str | None]] = []  # paths and ranges

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def served(files: dict[str, bytes]) -> Iterator[HubServer]:
    server = HubServer(files)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        files = self.server.files
        self.server.asked.append((path, self.headers.get("Range")))
        if "/gated" in path:
            self.answer(b"{}", status=403, **{"X-Error-Code": "GatedRepo"})
        elif "/missing" in path:
            self.answer(b"{}", status=404, **{"X-Error-Code": "RepoNotFound"})
        elif "/broken" in path:
            self.answer(b"{}", status=400)
        elif path.startswith("/api/models/org/empty/tree/"):
            self.answer(b"[]")
        elif "/tree/" in path:
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": f"o{i}"}
                for i, (name, data) in enumerate(files.items())
            ]
            self.answer(json.dumps(tree).encode())
        elif path.startswith("/api/models/"):
            self.answer(json.dumps({"id": "org/name", "sha": COMMIT, "siblings": []}).encode())
        elif "/resolve/" in path:
            name = path.partition(f"/resolve/{COMMIT}/")[2]
            if name not in files:
                self.answer(b"{}", status=404, **{"X-Error-Code": "EntryNotFound"})
                return
            self.answer(files[name], ETag=f'"{list(files).index(name)}"', **{"X-Repo-Commit": COMMIT})
        else:
            self.answer(b"{}", status=404)

    do_HEAD = do_GET

    def answer(self, body: bytes, *, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass
