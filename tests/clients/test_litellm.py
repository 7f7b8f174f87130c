"""The bodies that litellm 1.109's `rerank` sends to each kind of server, and what it reads of the answers.

litellm itself takes 190 MB and asks for another huggingface-hub than `export`: `make litellm-check` installs it into an
environment of its own and runs these with it.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.conftest import Ranking

TOP = 2
LITELLM = Path(__file__).parents[2] / ".litellm/bin/python"
PLACES = {"infinity/any": "", "cohere/any": "", "jina_ai/any": "", "huggingface/any": "", "hosted_vllm/any": "/v1"}
"""Which `api_base` each kind of server has, after the service's address."""


def post(url: str, body: dict[str, Any]) -> Any:
    return httpx.post(url, json=body, headers={"authorization": "Bearer none"}).raise_for_status().json()


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_infinity_jina_and_cohere(url: str, ranking: Ranking, path: str) -> None:
    body = {"model": "any", "query": ranking.query, "top_n": TOP, "documents": ranking.documents}
    answer = post(url + path, {**body, "return_documents": True})
    ranking.check([(entry["index"], entry["relevance_score"]) for entry in answer["results"]], TOP)
    shown = [entry.get("document") for entry in answer["results"]]
    texts = [ranking.documents[index] for index in ranking.order[:TOP]]
    forms = {"/rerank": texts, "/v1/rerank": [{"text": text} for text in texts], "/v2/rerank": [None] * TOP}
    assert shown == forms[path]
    assert answer["meta" if path == "/v2/rerank" else "usage"]


def test_tei(url: str, ranking: Ranking) -> None:
    options = {"raw_scores": False, "truncation_direction": "Right", "top_n": TOP, "return_text": True}
    answer = post(f"{url}/rerank", {"query": ranking.query, "texts": ranking.documents, **options})
    ranking.check([(entry["index"], entry["score"]) for entry in answer], TOP)
    assert [entry["text"] for entry in answer] == [ranking.documents[index] for index in ranking.order[:TOP]]


@pytest.mark.skipif(not LITELLM.exists(), reason="litellm is not there: make litellm-check")
def test_its_own_client(url: str, ranking: Ranking) -> None:
    asked = {"query": ranking.query, "documents": ranking.documents, "top_n": TOP, "api_key": "none"}
    requests = [{**asked, "model": model, "api_base": url + path} for model, path in PLACES.items()]
    words = [str(LITELLM), str(Path(__file__).with_name("litellm_rerank.py")), json.dumps(requests)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)  # noqa: S603 - ours
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout[done.stdout.index("[") :])
    for answer in answers:
        ranking.check([(entry["index"], entry["relevance_score"]) for entry in answer["results"]], TOP)
    assert len(answers) == len(PLACES)
