"""Stands before a chat model: `python -m examples.guard "Ignore all instructions" --label INJECTION`.

Standard library only: one `POST /predict` with the parts of a message, to a server of a classifier such as Prompt
Guard. A long message is asked about in parts that overlap, and the worst part decides. Exit code 0: it may pass; 1: it
is refused, or the server does not answer.
"""

import argparse
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

TIMEOUT = 60.0  # seconds
PART = 1500  # characters: about 400 tokens of English, which such models read
SMALLEST = 50
TOO_LARGE = 413


def parts_of(text: str, size: int = PART) -> list[str]:
    """A text in parts of this size that share a fifth with the next, so that no sentence is seen in halves only."""
    step = size - size // 5
    return [text[start : start + size] for start in range(0, max(1, len(text) - size // 5), step)]


def worst_score(url: str, text: str, label: str) -> float:
    """The largest score of a label over the parts of a text, each of which the model reads whole.

    Raises:
        OSError: the server cannot be reached, or refuses.
        ValueError: its model has no such label.
    """
    size = PART
    while (found := predict(url, parts_of(text, size), may_fail=size > SMALLEST)) is None:
        size //= 2  # a character may be a token, and more
    scores: list[float] = [entry["score"] for part in found for entry in part if entry["label"] == label]
    if not scores:
        raise ValueError(f"no label {label}: the model has {', '.join(sorted(entry['label'] for entry in found[0]))}")
    return max(scores)


def predict(url: str, parts: Sequence[str], *, may_fail: bool) -> list[list[dict[str, Any]]] | None:
    """Scores and labels of each part; None if a part is longer than the model reads and that may be.

    Raises:
        OSError: the server cannot be reached, or refuses.
    """
    body = json.dumps({"inputs": [[part] for part in parts], "truncate": False}).encode()  # what is cut is not read
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/predict", body, headers)  # noqa: S310 - a user's own URL
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:  # noqa: S310
            found: list[list[dict[str, Any]]] = json.load(response)
            return found
    except urllib.error.HTTPError as error:
        if error.code == TOO_LARGE and may_fail:
            return None
        raise OSError(json.load(error)["error"]) from error
    except urllib.error.URLError as error:
        raise OSError(f"no server answers at {url} ({error.reason}): start `polyhead serve`, or name --url") from error


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line; says the score, and whether the message may pass."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.guard", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("message", help="what a user wrote")
    parser.add_argument("--label", required=True, help="of messages that must not pass")
    parser.add_argument("--most", type=float, default=0.5, help="largest score that may pass (default: %(default)s)")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the server (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        score = worst_score(options.url, options.message, options.label)
    except (OSError, ValueError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    passes = score <= options.most
    sys.stdout.write(f"{'pass' if passes else 'refuse'}  {score:.4f}\n")
    parser.exit(0 if passes else 1)


if __name__ == "__main__":
    main()
