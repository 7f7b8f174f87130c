"""Requests that never end, so that a dashboard has something to show: `docker compose --profile load up`.

Standard library alone: it runs on the service's image. Most requests are a sentence, some are many texts or long ones,
some ask for attention, and a few are refused on purpose.
"""

import argparse
import http.client
import json
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

WORDS = ("a", "small", "cat", "sat", "under", "the", "mat", "because", "it", "was", "late", "and", "nobody", "knew")
TIMEOUT = 30.0  # seconds
CLIENTS = 64  # each sends one request at a time


def make_request(source: random.Random) -> tuple[str, dict[str, Any]]:
    """A path and a body."""
    text = " ".join(source.choices(WORDS, k=source.randint(3, 40)))
    kinds: list[tuple[str, dict[str, Any], int]] = [  # with how often each comes
        ("/encode", {"inputs": text}, 60),
        ("/v1/embeddings", {"input": text, "model": "any"}, 20),
        ("/encode", {"inputs": [text] * 16}, 10),
        ("/encode", {"inputs": text * 10}, 4),
        ("/encode", {"inputs": text, "attention": {"layers": [-1]}}, 4),
        ("/encode", {"inputs": []}, 2),  # refused
    ]
    ((path, body, _),) = source.choices(kinds, weights=[weight for *_, weight in kinds])
    return path, body


def send(address: str, path: str, body: dict[str, Any]) -> str:
    """One request on a connection of its own; its status, or what went wrong."""
    client = http.client.HTTPConnection(address, timeout=TIMEOUT)
    try:
        client.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        with client.getresponse() as answer:
            answer.read()
            return str(answer.status)
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        client.close()


def run(address: str, rate: float, seconds: float, stopped: threading.Event | None = None) -> Counter[str]:
    """Sends about `rate` requests a second at random moments until it is stopped, and counts their outcomes."""
    stopped, end = stopped or threading.Event(), time.monotonic() + seconds

    def ask_now_and_then(number: int) -> Counter[str]:
        source, found = random.Random(number), Counter[str]()  # noqa: S311 - no secrets
        while not stopped.wait(min(source.expovariate(rate / CLIENTS), end - time.monotonic())):
            if time.monotonic() >= end:
                break
            found[send(address, *make_request(source))] += 1
        return found

    with ThreadPoolExecutor(CLIENTS) as clients:
        return sum(clients.map(ask_now_and_then, range(CLIENTS)), Counter[str]())


def main(arguments: Sequence[str] | None = None, stopped: threading.Event | None = None) -> int:
    """Runs until its time is over or it is told to end; prints the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the service (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="until told to end, unless given")
    given = parser.parse_args(arguments)
    url = urlsplit(given.url)
    if not (url.scheme == "http" and url.netloc and given.rate > 0):
        parser.error("expected --url http://HOST:PORT and a --rate above 0")
    found = run(url.netloc, given.rate, given.seconds, stopped)
    sys.stdout.write(", ".join(f"{count} x {status}" for status, count in sorted(found.items())) + "\n")
    return 0


if __name__ == "__main__":
    told_to_end = threading.Event()
    for ending in (signal.SIGINT, signal.SIGTERM):  # the first process of a container ignores the second otherwise
        signal.signal(ending, lambda *_: told_to_end.set())
    sys.exit(main(stopped=told_to_end))
