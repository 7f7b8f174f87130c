"""Which lines fit a query? Asked of a server: `python -m examples.rerank_over_http LINES.txt "Where did the cat sit?"`.

Standard library only, as a client of any language would do it: one `POST /rerank` with the lines of a file. Where the
server has a cross-encoder, `--heads 3` names the three heads that look most from the query at the best line.
"""

import argparse
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TIMEOUT = 60.0  # seconds
Head = tuple[float, int, int]  # mass, layer, head


def ask(url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The server's answer, best first.

    Raises:
        OSError: it cannot be reached, or refuses; the message is its own if it has one.
    """
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/rerank", json.dumps(body).encode(), headers)  # noqa: S310 - a user's own URL
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:  # noqa: S310
            found: list[dict[str, Any]] = json.load(response)
            return found
    except urllib.error.HTTPError as error:
        raise OSError(json.load(error)["error"]) from error
    except urllib.error.URLError as error:
        raise OSError(f"no server answers at {url} ({error.reason}): start `polyhead serve`, or name --url") from error


def strongest_heads(attention: dict[str, Any], count: int) -> list[Head]:
    """The heads whose query tokens give the document most of their weight."""
    masses = zip(attention["layers"], attention["heads"], attention["query_to_document_mass"], strict=True)
    found = [(mass, layer, head) for layer, heads, row in masses for head, mass in zip(heads, row, strict=True)]
    return sorted(found, reverse=True)[:count]


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line; a failure is one line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.rerank_over_http",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, help="a document a line")
    parser.add_argument("query", help="what they are to fit")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the server (default: %(default)s)")
    parser.add_argument("--top", type=int, default=10, help="lines to print (default: %(default)s)")
    parser.add_argument("--heads", type=int, default=0, help="heads of a cross-encoder to name (default: none)")
    options = parser.parse_args(arguments)
    try:
        sys.stdout.writelines(f"{line}\n" for line in run(options))
    except (OSError, ValueError) as error:  # no such file, no server, or a refusal
        parser.exit(1, f"{parser.prog}: {error}\n")


def run(options: argparse.Namespace) -> list[str]:
    """Asks the server; the lines to print."""
    documents = [line for line in options.file.read_text(encoding="utf-8").splitlines() if line.strip()]
    body: dict[str, Any] = {"query": options.query, "texts": documents, "top_n": options.top}
    found = ask(options.url, body)
    lines = [f"{entry['score']:.4f}  {documents[entry['index']]}" for entry in found]
    if options.heads:
        best = documents[found[0]["index"]]
        (entry,) = ask(options.url, {"query": options.query, "texts": [best], "attention": {"layers": "all"}})
        heads = strongest_heads(entry["attention"], options.heads)
        lines += [f"layer {layer}, head {head} gives documents {mass:.1%}" for mass, layer, head in heads]
    return lines


if __name__ == "__main__":
    main()
