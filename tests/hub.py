"""A server that speaks as much of the hub's protocol as a download asks for: one model, at one commit.

The other side is `huggingface_hub`, which nobody here wrote: what it does not understand fails.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.deploy.tools import serving

MODEL, COMMIT = "drawn/model", "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """A running hub of one folder."""

    folder: Path
    url: str = ""
    asked: list[str] = field(default_factory=list)  # methods and paths of the requests so far
    breaks_off: str = ""  # a file whose first download ends in its middle

    def environment(self, cache: Path) -> Mapping[str, str]:
        """What a process is given to fetch from here, and to keep everything below `cache`."""
        return {"HF_ENDPOINT": self.url, "HF_HOME": str(cache / "hub"), "POLYHEAD_CACHE": str(cache / "exports")}


@contextmanager
def serve_hub(folder: Path) -> Iterator[Hub]:
    """Serves a folder as `MODEL`."""
    hub = Hub(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append(f"{self.command} {path}")
            files = {str(file.relative_to(folder)): file for file in sorted(folder.rglob("*")) if file.is_file()}
            asked = re.fullmatch(rf"(?:/api/models)?/{MODEL}/(\w+)/(?:main|{COMMIT})/?(.*)", path)
            kind, name = asked.groups() if asked else ("revision" if path == f"/api/models/{MODEL}" else "", "")
            body, code = b"{}", {"X-Error-Code": "EntryNotFound" if path.startswith(f"/{MODEL}/") else "RepoNotFound"}
            if kind == "tree":
                entries = [{"path": name, "size": file.stat().st_size} for name, file in files.items()]
                body, code = json.dumps([{"type": "file", "oid": "0", **entry} for entry in entries]).encode(), {}
            elif kind == "revision":
                siblings = [{"rfilename": name} for name in files]
                body, code = json.dumps({"id": MODEL, "sha": COMMIT, "siblings": siblings}).encode(), {}
            elif kind == "resolve" and name in files:
                body, code = files[name].read_bytes(), {}
            self.send_response(404 if code else 200)
            etag = f'"{hashlib.sha256(body).hexdigest()}"'
            described = {"Content-Length": str(len(body)), "ETag": etag, "X-Repo-Commit": COMMIT, **code}
            for key, value in described.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET" and name and name == hub.breaks_off:
                hub.breaks_off, self.close_connection = "", True
                self.wfile.write(body[: len(body) // 2])
            elif self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - the name of the standard library

        def log_message(self, *_: object) -> None: ...

    with serving(Handler) as port:
        hub.url = f"http://127.0.0.1:{port}"
        yield hub
