"""The bodies that litellm 1.109's `rerank` sends to each kind of server, and what it reads of the answers.

litellm itself takes 190 MB and asks for another huggingface-hub than `export`: `make litellm-check` installs it into an
environment of its own and runs these with it.
"""

import json
import subprocess
from pathlib import Path

import pytest

from tests.clients.conftest import Ranking

TOP = 2
LITELLM = Path(__file__).parents[2] / ".litellm/bin/python"
PLACES = {"infinity/any": "", "cohere/any": "", "jina_ai/any": "", "huggingface/any": "", "hosted_vllm/any": "/v1"}
"""Which `api_base` each kind of server has, after the service's address."""


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
