"""Fills a directory with an artifact from an HTTP server; what is not as its hashes say never gets its name.

Runs in the init container on the service's image: standard library, and `model.artifact` for the contract. The hash of
the manifest is given, the manifest holds those of all other files, so a store that was tampered with cannot slip in a
model. A file that is there already, with the right hash, is not fetched again.
"""

import argparse
import hashlib
import http.client
import importlib
import importlib.util
import signal
import sys
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from model import artifact
else:  # in the image every package is below polyhead, in a checkout it is not
    installed = importlib.util.find_spec("polyhead.model") is not None
    artifact = importlib.import_module("polyhead.model.artifact" if installed else "model.artifact")

READ_TIMEOUT = 30.0  # seconds without a byte
CHUNK = 2**20
BESIDE_MODEL = 768 * 2**20
"""Bytes of memory that a process needs besides its model: 640 MiB that requests may hold, and its own (Sizing)."""


class FetchError(Exception):
    """The artifact cannot be fetched, or is not the one that was asked for; the message says which file and why."""


def fetch(url: str, sha256: str, directory: Path, *, memory_limit: int | None = None) -> artifact.Artifact:
    """Fetches what is missing, the manifest last, and verifies the whole.

    Args:
        url: of the artifact's directory, http or https.
        sha256: of its manifest, in hex.
        directory: to fill; it exists.
        memory_limit: bytes that the service may have.

    Raises:
        FetchError: a file cannot be had, or is another; or the model is too large for the limit.
        ArtifactError: the files are no artifact.
    """
    if not url.startswith(("http://", "https://")):
        raise FetchError(f"{url}: expected an http or https address")
    partial = directory / f".{artifact.MANIFEST}"
    partial.mkdir(exist_ok=True)
    _download(url, artifact.MANIFEST, partial / artifact.MANIFEST, sha256, artifact.MAX_MANIFEST_BYTES)
    files = artifact.read_manifest(partial).files
    _check_memory(sum(entry.size for entry in files.values()), memory_limit)
    for name, entry in files.items():
        _fetch_file(url, name, entry, directory)
    (partial / artifact.MANIFEST).replace(directory / artifact.MANIFEST)
    partial.rmdir()
    return artifact.Artifact.open(directory)


def _check_memory(size: int, limit: int | None) -> None:
    needed = size + BESIDE_MODEL
    if limit is not None and needed > limit:
        raise FetchError(
            f"the model has {size / 2**20:.0f} MiB and the service may have {limit / 2**20:.0f} MiB of memory: set "
            f"requests.memory and limits.memory of the container polyhead to {-(-needed // 2**20)}Mi"
        )


def _fetch_file(url: str, name: str, entry: artifact.FileEntry, directory: Path) -> None:
    if Path(name).name != name or name in ("", ".", ".."):
        raise FetchError(f"the manifest names {name!r}: only plain file names are allowed")
    path = directory / name
    if path.is_file() and path.stat().st_size == entry.size and artifact.hash_file(path) == entry.sha256:
        return
    partial = directory / f".{name}.partial"
    _download(url, name, partial, entry.sha256, entry.size)
    partial.replace(path)


def _download(url: str, name: str, path: Path, sha256: str, max_bytes: int) -> None:
    address = f"{url.rstrip('/')}/{urllib.parse.quote(name)}"
    digest, size = hashlib.sha256(), 0
    try:
        with urllib.request.urlopen(address, timeout=READ_TIMEOUT) as answer, path.open("wb") as file:  # noqa: S310 - the scheme is checked
            while chunk := answer.read(CHUNK):
                size += len(chunk)
                if size > max_bytes:
                    raise FetchError(f"{address} holds more than {max_bytes} bytes, which is not what was asked for")
                digest.update(chunk)
                file.write(chunk)
    except (OSError, ValueError, http.client.HTTPException) as error:  # no address, no HTTP, an answer that breaks off
        raise FetchError(f"{address} cannot be fetched: {error!r}") from error
    if digest.hexdigest() != sha256.lower():
        path.unlink()
        raise FetchError(f"{address} has SHA-256 {digest.hexdigest()}, expected {sha256}")
    sys.stderr.write(f"{address}: {size} bytes, as expected\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetches, reports, and returns the exit code."""
    parser = argparse.ArgumentParser(description="Fill a directory with an artifact whose hash is known.")
    parser.add_argument("--url", required=True, help="address of the artifact's directory")
    parser.add_argument("--sha256", required=True, help="of its manifest.json")
    parser.add_argument("--memory-limit", type=int, metavar="BYTES", help="of the service; too little is an error")
    parser.add_argument("directory", type=Path)
    options = parser.parse_args(arguments)
    try:
        fetched = fetch(options.url, options.sha256, options.directory, memory_limit=options.memory_limit)
    except (FetchError, artifact.ArtifactError, OSError) as error:
        sys.stderr.write(f"fetch_model: {error}\n")
        return 1
    sys.stderr.write(f"{fetched.manifest.model}, {fetched.manifest.precision}: verified\n")
    return 0


if __name__ == "__main__":
    # The first process of a container ignores it otherwise, and a deleted pod stays for its grace period.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(main())
