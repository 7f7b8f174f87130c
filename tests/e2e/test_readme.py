"""The README's first request, as it stands there, gives the answer that stands there."""

import json
import re
from pathlib import Path

import numpy as np

from tests.service.process import ServerProcess

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_first_request_gives_the_first_answer(default_artifact: Path) -> None:
    sent = re.search(r"curl -s \S+/encode .*? -d '(\{.*?\})'", README, re.DOTALL)
    shown = re.search(r"```json\n(.*?)```", README, re.DOTALL)
    assert sent
    assert shown
    expected = json.loads(shown[1])
    with ServerProcess("service", "--model", str(default_artifact)) as server:
        status, _, body = server.wait_until_ready().request("POST", "/encode", json.loads(sent[1]))
        assert server.stop() == 0
    answer = json.loads(body)
    assert status == 200
    np.testing.assert_allclose(answer["embeddings"], expected["embeddings"], atol=1e-5)
    assert {name: answer[name] for name in ("usage", "items")} == {name: expected[name] for name in ("usage", "items")}
    (found,), (attention,) = answer["attention"], expected["attention"]
    for name in ("tokens", "offsets", "layers", "heads"):
        assert found[name] == attention[name]
    (((row,),),) = attention["weights"]
    np.testing.assert_allclose(found["weights"][0][0][0][: len(row) - 1], row[:-1], atol=1e-5)
