import shutil
from pathlib import Path

from model.artifact import HEADS
from service.settings import read_settings
from tests.service.conftest import Served
from tests.service.fake_engine import FakeBackend, write_fake_artifact

PATHS = ("/info", "/heads", "/v1/models", "/models")


def test_what_is_said_of_the_model_is_that_of_the_files_that_were_loaded(tmp_path: Path) -> None:
    directory = tmp_path / "artifact"
    directory.mkdir()
    (directory / HEADS).write_text('{"schema": 1, "heads": []}')
    write_fake_artifact(directory)
    served = Served(read_settings(["--model", str(directory), "--workers", "1"]), FakeBackend())
    served.readiness.start(served.engine)
    try:
        before = [served.client.get(path) for path in PATHS]
        assert [answer.status_code for answer in before] == [200] * len(PATHS)
        shutil.rmtree(directory)
        assert [served.client.get(path).content for path in PATHS] == [answer.content for answer in before]
    finally:
        served.client.close()
        served.engine.close(5)
