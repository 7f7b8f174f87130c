"""Requests that never end, so that a dashboard has something to show: `docker compose --profile load up`.

Standard library alone: it runs on the service's image. Arrivals wait for nobody. Most requests are a sentence, some are
many texts or long ones, some ask for attention, and a few are refused on purpose.
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
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

WORDS = ("a", "small", "cat", "sat", "under", "the", "mat", "because", "it", "was", "late", "and", "nobody", "knew")
TIMEOUT = 30.0  # seconds
AT_ONCE = 64  # requests; beyond, arrivals are left out


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


def run(address: str, rate: float, seconds: float, seed: int, stopped: threading.Event | None = None) -> Counter[str]:
    """Sends `rate` requests a second at random moments until it is stopped, and counts their outcomes."""
    stopped = stopped or threading.Event()
    source, places = random.Random(seed), threading.Semaphore(AT_ONCE)  # noqa: S311 - no secrets
    found, lock = Counter[str](), threading.Lock()

    def one(path: str, body: dict[str, Any]) -> None:
        try:
            outcome = send(address, path, body)
            with lock:
                found[outcome] += 1
        finally:
            places.release()

    end = due = time.monotonic()
    end += seconds
    threads: list[threading.Thread] = []
    while (due := due + source.expovariate(rate)) < end and not stopped.wait(max(0.0, due - time.monotonic())):
        request = make_request(source)
        if places.acquire(blocking=False):
            threads = [thread for thread in threads if thread.is_alive()]
            threads.append(threading.Thread(target=one, args=request, daemon=True))
            threads[-1].start()
    for thread in threads:
        thread.join()
    return found


def main(arguments: Sequence[str] | None = None, stopped: threading.Event | None = None) -> int:
    """Runs until its time is over or it is told to end; prints the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = "http://127.0.0.1:8000"
    parser.add_argument("--url", type=_address, default=default, help="of the service (default: %(default)s)")
    parser.add_argument("--rate", type=_rate, default=20.0, help="requests a second (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="until told to end, unless given")
    parser.add_argument("--seed", type=int, default=0, help="of the requests (default: %(default)s)")
    given = parser.parse_args(arguments)
    found = run(given.url, given.rate, given.seconds, given.seed, stopped)
    sys.stdout.write(", ".join(f"{count} x {status}" for status, count in sorted(found.items())) + "\n")
    return 0


def _address(text: str) -> str:
    with suppress(ValueError):  # of a port that is no number
        url = urlsplit(text)
        if url.scheme == "http" and url.hostname and url.port != 0 and url.path in ("", "/"):
            return url.netloc
    raise argparse.ArgumentTypeError(f"expected http://HOST:PORT, got {text!r}")


def _rate(text: str) -> float:
    with suppress(ValueError):
        if 0 < (rate := float(text)) < float("inf"):
            return rate
    raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")


if __name__ == "__main__":
    told_to_end = threading.Event()
    for ending in (signal.SIGINT, signal.SIGTERM):  # the first process of a container ignores the second otherwise
        signal.signal(ending, lambda *_: told_to_end.set())
    sys.exit(main(stopped=told_to_end))
