"""A server that speaks as much of the hub's protocol as a download asks for: one model, at one commit.

The other side is `huggingface_hub`, which nobody here wrote: what it does not understand fails.
"""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

MODEL, COMMIT = "drawn/model", "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """A running hub.

    Attributes:
        folder: the model's files.
        url: for HF_ENDPOINT.
        asked: methods and paths of the requests so far.
        breaks_off: a file whose first download ends in its middle.
    """

    folder: Path
    url: str = ""
    asked: list[str] = field(default_factory=list)
    breaks_off: str = ""

    def environment(self, cache: Path) -> Mapping[str, str]:
        """What a process is given to fetch from here, and to keep everything below `cache`."""
        return {"HF_ENDPOINT": self.url, "HF_HOME": str(cache / "hub"), "POLYHEAD_CACHE": str(cache / "exports")}


@contextmanager
def serve_hub(folder: Path) -> Iterator[Hub]:
    """Serves a folder as `MODEL`."""
    hub = Hub(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append(f"{self.command} {path}")
            files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
            described = [f"/api/models/{MODEL}/revision/{name}" for name in ("main", COMMIT)]
            listed = [f"/api/models/{MODEL}/tree/{name}" for name in ("main", COMMIT)]
            resolved = [path.removeprefix(f"/{MODEL}/resolve/{name}/") for name in ("main", COMMIT)]
            wanted = next((name for name in resolved if name in files), None)
            if path in listed:
                sizes = {name: (folder / name).stat().st_size for name in files}
                entries = [{"type": "file", "path": name, "size": size, "oid": "0"} for name, size in sizes.items()]
                self._send(200, json.dumps(entries).encode(), with_body=with_body)
            elif path in described:
                siblings = [{"rfilename": name} for name in files]
                body = json.dumps({"id": MODEL, "sha": COMMIT, "siblings": siblings}).encode()
                self._send(200, body, with_body=with_body)
            elif wanted is not None:
                self._send(200, (folder / wanted).read_bytes(), with_body=with_body, name=wanted)
            else:
                code = {"X-Error-Code": "EntryNotFound" if path.startswith(f"/{MODEL}/") else "RepoNotFound"}
                self._send(404, b"{}", with_body=with_body, headers=code)

        def _send(
            self, status: int, body: bytes, *, with_body: bool, name: str = "", headers: Mapping[str, str] | None = None
        ) -> None:
            ends_early = with_body and bool(name) and name == hub.breaks_off
            self.send_response(status)
            etag = hashlib.sha256(body).hexdigest()
            for key, value in {
                "Content-Length": str(len(body)),
                "ETag": f'"{etag}"',
                "X-Repo-Commit": COMMIT,
                **(headers or {}),
            }.items():
                self.send_header(key, value)
            self.end_headers()
            if ends_early:
                hub.breaks_off = ""
                self.wfile.write(body[: len(body) // 2])
                self.close_connection = True
            elif with_body:
                self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
