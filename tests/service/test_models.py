"""Several models in one process: which one answers, and that none is in the way of another."""

import asyncio
import gc
import shutil
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from model.artifact import TOKENIZER, ArtifactError
from service.app import ROUTES, create_app
from service.batching.cores import CoreShare
from service.errors import Overloaded
from service.models import ServedModel
from service.runner import Runner
from service.services import Readiness
from service.settings import SettingsError, read_settings
from tests.service.conftest import bodies
from tests.service.fake_engine import FakeBackend, load_fake_runner, write_fake_artifact

TEXT = "the cat sat"
TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXT]}
BY_NAME = bodies(TEXT)
OF_OTHER_TASKS: dict[str, dict[str, Any]] = {
    "/predict": {"inputs": TEXT},
    "/classify": {"input": TEXT},
    "/embed_sparse": {"inputs": TEXT},
    "/v1/multi-vector": {"input": [TEXT]},
}


class Both:
    """Two fake models in one app, `one` and `two`, each with a backend of its own."""

    def __init__(self, directories: list[Path], *flags: str) -> None:
        given = [f"{name}={directory}" for name, directory in zip(("one", "two"), directories, strict=True)]
        self.settings = read_settings([*given, "--workers", "1", *flags])
        self.readiness = Readiness()
        app, self.services = create_app(self.settings, self.readiness)
        self.backends = {name: FakeBackend() for name in ("one", "two")}
        self.engines: dict[str, Runner] = {}
        self.client = TestClient(app, base_url="http://testserver:8000")
        self.admin = TestClient(app, base_url="http://testserver:8001")

    def start(self, *names: str, max_queue_delay: float = float("inf")) -> None:
        for model in self.services.models:
            if model.alias in names:
                settings = self.settings.model_copy(update={"model": model.directory})
                engine = load_fake_runner(settings, model.observe_batch, self.backends[model.alias], max_queue_delay)
                self.engines[model.alias] = engine
                self.services.models.start(model, engine)
        self.readiness.start()

    def ran(self, name: str) -> int:
        return len(self.backends[name].batches)

    def ask(self, *model: str) -> Any:
        """Has the text encoded, by the model of this name."""
        return self.client.post("/encode", json={"inputs": TEXT, **({"model": model[0]} if model else {})})

    def add(self, **body: str) -> Any:
        return self.admin.post("/admin/models", json=body)

    def close(self) -> None:
        for name, engine in self.engines.items():
            self.backends[name].gate.set()
            engine.close(5)


@pytest.fixture
def both(fake_artifact: Path, tmp_path: Path) -> Iterator[Both]:
    made = Both([fake_artifact, write_fake_artifact(tmp_path / "second")], "--default", "two")
    yield made
    made.close()


@pytest.fixture
def started(both: Both) -> Both:
    both.start("one", "two")
    return both


def test_every_body_has_the_field() -> None:
    bodies = {route.path for route in ROUTES if route.method == "POST" and route.access != "operator"}
    assert bodies == {*BY_NAME, *OF_OTHER_TASKS, "/v1/score", "/v2/models/{model:path}/infer"}


def test_the_field_chooses_the_model_and_answers_name_it(started: Both) -> None:
    naming = set()
    for path, body in BY_NAME.items():
        for name, other in (("one", "two"), ("two", "one")):
            before, own = started.ran(other), started.ran(name)
            answer = started.client.post(path, json={**body, "model": name})
            assert answer.status_code == 200, f"{path}: {answer.text}"
            assert started.ran(other) == before, path
            assert path == "/tokenize" or started.ran(name) > own, path
            if isinstance(answer.json(), dict) and "model" in answer.json():
                naming.add(path)
                assert answer.json()["model"] == name
    assert naming > {"/encode", "/tokenize", "/v1/embeddings", "/embeddings", "/v1/rerank", "/similarity"}


@pytest.mark.parametrize(("cores", "most"), [(1, 2), (4, 4), (8, 6)])
def test_no_more_workers_can_be_busy_than_cores_that_models_share(
    both: Both, monkeypatch: pytest.MonkeyPatch, cores: int, most: int
) -> None:
    """A share of all workers would be half of the load; each model has one core, however few there are."""
    monkeypatch.setattr("service.models.usable_cores", lambda: cores)
    made = Both([model.directory for model in both.services.models], "--workers", "3")
    made.start("one", "two")
    assert f"polyhead_busy_workers_limit {float(most)}\n" in made.client.get("/metrics").text
    made.close()


def test_a_name_is_looked_at_before_the_task(started: Both) -> None:
    for path, body in {**BY_NAME, **OF_OTHER_TASKS}.items():
        answer = started.client.post(path, json={**body, "model": "three"})
        assert (answer.status_code, "no such model; one, two are served here" in answer.text) == (404, True), path
    for path, body in OF_OTHER_TASKS.items():
        assert "no such model" not in started.client.post(path, json={**body, "model": "one"}).text, path


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        ("/encode", {"inputs": TEXT}, "two"),  # the default
        ("/encode", {"inputs": TEXT, "model": "tests/fake"}, "one"),  # the first that has an artifact's own name
        ("/v2/models/one/versions/1/infer", {"inputs": [TENSOR]}, "one"),
    ],
)
def test_who_answers(started: Both, path: str, body: Any, model: str) -> None:
    answer = started.client.post(path, json=body)
    assert (answer.status_code, answer.json().get("model", answer.json().get("model_name"))) == (200, model)
    assert {name: started.ran(name) for name in ("one", "two")} == {"one": model == "one", "two": model == "two"}


def test_models_are_listed_and_described_by_name(started: Both) -> None:
    for path in ("/v1/models", "/models"):
        assert [entry["id"] for entry in started.client.get(path).json()["data"]] == ["one", "two"]
    assert started.client.get("/v1/models/one").json()["id"] == "one"
    assert started.client.get("/info").json()["model"] == "two"
    paths = {"/v1/models/three": 404, "/info?model=three": 404, "/info?model=one": 200}
    assert {path: started.client.get(path).status_code for path in paths} == paths


def test_each_model_is_counted_by_itself(started: Both) -> None:
    started.client.post("/encode", json={"inputs": [TEXT, "dog"], "model": "one"})
    value = started.services.metrics.registry.get_sample_value
    assert [value("polyhead_texts_total", {"model": name}) for name in ("one", "two")] == [2, 0]
    counts = [value("polyhead_answer_duration_seconds_count", {"model": m, "size": "small"}) for m in ("one", "two")]
    assert counts == [1, 0]
    started.services.metrics.forget_model("one")
    assert value("polyhead_texts_total", {"model": "one"}) is None
    assert value("polyhead_texts_total", {"model": "two"}) == 0


def test_a_model_that_is_not_there_takes_nothing_from_the_other(both: Both) -> None:
    both.start("one")
    failed = next(model for model in both.services.models if model.alias == "two")
    assert both.client.get("/readyz").status_code == both.client.get("/healthz").status_code == 200
    assert both.ask("one").status_code == 200
    answer = both.ask()
    assert (answer.status_code, "loading" in answer.text) == (503, True)
    failed.failure = "cannot load it"
    answer = both.ask()
    assert (answer.status_code, "could not be loaded" in answer.text) == (503, True)
    assert answer.headers["retry-after"] == "1"
    assert [entry["id"] for entry in both.client.get("/v1/models").json()["data"]] == ["one"]
    both.services.models._served[:] = [failed]  # the other is removed
    assert both.client.get("/healthz").status_code == 503


def test_a_model_whose_run_hangs_asks_for_a_new_process(started: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    assert started.client.get("/healthz").status_code == 200
    monkeypatch.setattr(started.engines["one"], "is_alive", lambda: False)
    assert started.client.get("/healthz").status_code == 503


def test_two_models_of_one_name_are_refused(both: Both) -> None:
    for model in both.services.models:
        model.alias = ""
    first, second = both.services.models
    engine = load_fake_runner(both.settings.model_copy(update={"model": first.directory}))
    both.services.models.start(first, engine)
    with pytest.raises(ValueError, match="another model is called tests/fake: give this one a name of its own, NAME="):
        both.services.models.start(second, engine)
    engine.close(5)


def test_a_full_queue_is_its_own_models(started: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for the flooded model is refused once its name is read; if both are full, before anything is read."""
    tokenized: list[str] = []

    def fill(name: str) -> None:
        refusal = Overloaded("full", retry_after=1)
        monkeypatch.setattr(started.engines[name], "early_refusal", lambda *_: refusal)
        monkeypatch.setattr(started.engines[name], "tokenize", lambda *_, **__: tokenized.append(name))

    fill("one")
    assert ([started.ask(name).status_code for name in ("one", "two")], tokenized) == ([429, 200], [])
    assert started.client.post("/v2/models/one/infer", json={}).status_code == 429, "before its body is read"
    assert started.client.post("/v2/models/two/infer", json={}).status_code == 422
    fill("two")
    assert started.client.post("/encode", content=b"no JSON").status_code == 429


def test_bodies_of_one_model_leave_room_for_the_others(started: Both) -> None:
    one, two = started.services.models
    assert one.bodies.limit == two.bodies.limit == started.settings.max_held_body_bytes // 2
    assert one.answers.limit == two.answers.limit == started.settings.max_held_answer_bytes // 2
    one.bodies.held = one.bodies.limit
    for answer in (started.ask("one"), started.client.post("/v2/models/one/infer", json={"inputs": [TENSOR]})):
        assert (answer.status_code, "too many request bodies are held" in answer.text) == (429, True)
    assert started.ask("two").status_code == 200
    one.bodies.held = 0
    assert started.ask("one").status_code == 200
    assert one.bodies.held == two.bodies.held == one.in_use == two.in_use == 0


@pytest.fixture
def operated(both: Both, tmp_path: Path) -> Iterator[Both]:
    """The same with a store that holds `third`, and a loader of fakes."""
    write_fake_artifact(tmp_path / "store" / "third")
    made = Both([model.directory for model in both.services.models], *STORE, str(tmp_path / "store"))
    made.backends["third"] = FakeBackend()

    async def load(model: ServedModel) -> None:
        try:
            settings = made.settings.model_copy(update={"model": model.directory})
            made.engines["third"] = load_fake_runner(settings, model.observe_batch, made.backends["third"])
            made.services.models.start(model, made.engines["third"])
        except ArtifactError as error:
            model.failure = str(error)

    made.services.models.load = load
    made.start("one", "two")
    yield made
    made.close()


STORE = ("--admin-port", "8001", "--model-store")
ADD = {"artifact": "third", "name": "three"}


def test_models_come_and_go(operated: Both, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "service.models")
    assert operated.ask("three").status_code == 404
    states = operated.add(**ADD).json()["models"]
    assert [(state["name"], state["ready"]) for state in states] == [("one", True), ("two", True), ("three", True)]
    assert (operated.ask("three").status_code, operated.ran("third")) == (200, 1)
    assert operated.services.models.find("three").answers.limit == operated.settings.max_held_answer_bytes // 3
    owned = operated.admin.delete("/admin/models/tests/fake")  # which all three artifacts are called
    assert (owned.status_code, "served as one: remove it by that name" in owned.text) == (404, True)
    for name in ("three", "one"):
        assert operated.admin.delete(f"/admin/models/{name}").status_code == 200
    assert [record.getMessage() for record in caplog.records] == ["removing a model"] * 2
    assert isinstance(operated.engines["two"].batcher.cores, CoreShare)
    assert [operated.backends[name].is_closed for name in ("one", "two")] == [True, False]
    assert [state["name"] for state in operated.admin.get("/admin/models").json()["models"]] == ["two"]
    assert operated.ask().status_code == 200
    assert operated.ask("three").status_code == 404, "what is left stands for no other model"
    assert operated.admin.delete("/admin/models/two").status_code == 422
    assert operated.client.get("/readyz").status_code == 200


def test_a_model_that_is_removed_is_freed_at_once(operated: Both) -> None:
    """The server collects garbage rarely, and never what it began with; a tokenizer may have 800 MB."""
    operated.add(**ADD)
    gc.disable()
    try:
        for name, engine in (("three", "third"), ("one", "one")):
            tokenizer = weakref.ref(operated.engines.pop(engine).tokenizer)
            assert operated.ask(name).status_code == 200
            assert operated.admin.delete(f"/admin/models/{name}").status_code == 200
            assert tokenizer() is None, name
    finally:
        gc.enable()


def test_a_model_that_loads_at_last_takes_the_failed_ones_place(operated: Both) -> None:
    models = operated.services.models
    failed = models.find("one")
    failed.loaded = None
    failed.failure = "cannot load it"
    for body, names in ((ADD, ["one", "two", "three"]), ({**ADD, "name": "one"}, ["one", "two", "three"])):
        states = operated.add(**body).json()["models"]
        assert [state["name"] for state in states] == names
    assert [(state["ready"], state["failure"]) for state in states] == [(True, "")] * 3


def test_so_does_one_whose_failed_form_was_called_as_its_directory(operated: Both) -> None:
    """As it is if its manifest could not be read at the start."""
    models, store = operated.services.models, operated.settings.model_store
    assert store is not None
    failed = models.find("one")
    failed.loaded, failed.failure, failed.alias, failed.name = None, "cannot load it", "", "third"
    failed.directory = store / "third"
    operated.services.metrics.of_model("third")
    states = operated.add(artifact="third").json()["models"]
    assert [(state["name"], state["ready"]) for state in states] == [("tests/fake", True), ("two", True)]
    assert 'model="third"' not in operated.admin.get("/metrics").text, "an alert on it would fire on"


@pytest.mark.parametrize("leaves_room", [True, False])
def test_what_cannot_be_loaded_is_said_and_changes_nothing(operated: Both, leaves_room: bool) -> None:
    models, store = operated.services.models, operated.settings.model_store
    assert store is not None
    (store / "broken").mkdir()
    (store / "broken" / "graph").write_bytes(bytes(models.find("one").num_bytes))
    if not leaves_room:  # and none is made for what does not load
        most = 2 * models.find("one").num_bytes
        models._settings = operated.settings.model_copy(update={"max_model_bytes": most, "default": "one"})
    shutil.copytree(store / "third", store / "changed")
    (store / "changed" / TOKENIZER).write_bytes((store / "third" / TOKENIZER).read_bytes()[:-1] + b" ")
    for body, status, message in (
        ({"artifact": "changed", "name": "changed"}, 422, "changed"),
        ({"artifact": "fourth"}, 404, "the store has no such directory"),
        ({"artifact": "../third"}, 422, "artifact: expected a directory of `--model-store`, named in letters, digits"),
        ({"artifact": "."}, 422, "artifact"),
        ({"artifact": "broken"}, 422, "manifest.json"),
        ({"artifact": "third", "name": "a/b"}, 422, "name"),
        ({"artifact": "third", "name": "one"}, 422, "another model is called one"),
    ):
        answer = operated.add(**body)
        assert (answer.status_code, message in answer.text) == (status, True), answer.text
        assert [model.name for model in models] == ["one", "two"]


def test_one_more_model_than_fits_unloads_the_least_recently_used(operated: Both) -> None:
    models, size = operated.services.models, operated.services.models.find("one").num_bytes
    assert size > 0
    models._settings = operated.settings.model_copy(update={"max_model_bytes": 3 * size - 1, "default": "one"})
    for name in ("two", "one"):
        assert operated.ask(name).status_code == 200
    states = operated.add(**ADD).json()["models"]
    assert [state["name"] for state in states] == ["one", "three"]  # the default stays, however long it was not used
    assert operated.backends["two"].is_closed
    assert operated.ask("two").status_code == 404
    models._settings = operated.settings.model_copy(update={"max_model_bytes": 2 * size - 1, "default": "one"})
    answer = operated.add(artifact="third", name="four")
    assert (answer.status_code, "--max-model-bytes leaves" in answer.text) == (422, True)
    assert [model.name for model in models] == ["one", "three"]


async def test_a_model_that_leaves_answers_what_it_was_asked(operated: Both) -> None:
    backend, body = operated.backends["one"], {"inputs": TEXT, "model": "one"}
    transport = httpx.ASGITransport(app=operated.client.app)
    backend.gate.clear()
    model = operated.services.models.find("one")
    model.enter()  # as a request does whose texts are not in the queue yet

    async def until(holds: Callable[[], bool], asked: asyncio.Future[httpx.Response]) -> None:
        while not holds():
            assert not asked.done(), asked.result().text
            await asyncio.sleep(0.001)

    async with httpx.AsyncClient(transport=transport, base_url="http://testserver:8000") as client:
        asked = asyncio.ensure_future(client.post("/encode", json=body))
        await until(lambda: bool(backend.batches), asked)
        removed = asyncio.ensure_future(client.delete("http://testserver:8001/admin/models/one"))
        await until(lambda: len(operated.services.models) == 1, removed)
        assert (await client.post("/encode", json=body)).status_code == 404
        assert not removed.done()
        backend.gate.set()
        assert (await asked).status_code == 200
        await asyncio.sleep(0.05)
        assert (removed.done(), backend.is_closed) == (False, False)
        model.leave()
        assert (await removed).status_code == 200
    assert backend.is_closed


def test_operators_need_the_admin_port_a_store_and_a_key(both: Both, operated: Both, fake_artifact: Path) -> None:
    assert "there is none" in both.add(**ADD).text
    assert operated.client.post("/admin/models", json=ADD).status_code == 404
    app, _ = create_app(read_settings([str(fake_artifact), "--admin-port", "80", "--api-keys", "k" * 16]), Readiness())
    client, key = TestClient(app), {"x-api-key": "k" * 16}
    assert client.get("/admin/models").status_code == 401
    assert client.get("/admin/models", headers=key).status_code == 200
    assert client.delete("/admin/models/one", headers=key).status_code == 404


def test_models_of_the_command_line(tmp_path: Path, fake_artifact: Path) -> None:
    copy = str(shutil.copytree(fake_artifact, tmp_path / "copy"))
    for arguments in (["a", "a"], ["m=a", "m=b"], [str(fake_artifact), copy]):
        with pytest.raises(SettingsError, match="two models have one name"):
            read_settings(arguments)
    (tmp_path / "x=y").mkdir()
    settings = read_settings(["a", "small=b/c", str(tmp_path / "x=y"), "--default", "small"])
    assert settings.named_models == [("", Path("a")), ("small", Path("b/c")), ("", tmp_path / "x=y")]
    settings = read_settings(["--model", "a", "--more-models", "b, c=d"])
    assert settings.named_models == [("", Path("a")), ("", Path("b")), ("c", Path("d"))]
