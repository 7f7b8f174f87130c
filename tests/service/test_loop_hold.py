"""No request holds the event loop for more than 20 ms, nor for a time that grows faster than its size."""

import asyncio
import gc
import time
from collections.abc import Iterator

import pytest

from service.answers.vectors import TEXTS_AT_ONCE, TURN_SECONDS, in_turns
from service.app import ROUTES
from tests.service.loop_hold import Case, measure
from tests.service.loop_hold_cases import BODIES, WITHOUT_BODY, all_cases, answer_cases, field_cases

ON_A_BUSY_MACHINE = 0.1  # seconds: a defect takes longer, and other tests run meanwhile
ANSWERED = {200}
REFUSED_OR_ANSWERED = {200, 400, 404, 405, 406, 413, 415, 422, 429, 503}


@pytest.fixture(scope="module", autouse=True)
def _without_garbage() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_every_route_is_measured() -> None:
    declared = {f"{route.method} {route.path}" for route in ROUTES}
    with_body = {body.route for body in BODIES}
    assert with_body | WITHOUT_BODY == declared
    assert not with_body & WITHOUT_BODY
    assert {case.route for case in answer_cases()} == with_body - {"POST /admin/models"}, "which loads, in a process"
    assert {case.route for case in all_cases()} == declared


def quick_cases() -> list[Case]:
    """Each route's first field: too many numbers in it, and a string without an end."""
    cases = {
        (case.route, case.model, kind): case
        for case in reversed([*field_cases()])
        if (kind := case.name.rpartition(": ")[2]) in ("numbers", "no end")
    }
    return list(cases.values())


@pytest.mark.parametrize("case", quick_cases(), ids=lambda case: f"{case.route} {case.name}")
def test_wrong_elements_are_refused_at_once(case: Case) -> None:
    found = measure(case, repeats=2)
    assert found.status in REFUSED_OR_ANSWERED
    assert found.whole < ON_A_BUSY_MACHINE


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("route", sorted({case.route for case in all_cases()}))
def test_no_request_holds_the_loop(route: str) -> None:
    found = [measure(case, attempts=5) for case in all_cases() if case.route == route]
    too_long = [f"{it.case.name}: {it.whole * 1e3:.0f} ms, growth {it.growth:.1f}" for it in found if not it.is_fine]
    wrong = [
        f"{one.case.name}: {one.status}"
        for one in found
        if one.status not in (ANSWERED if one.case.is_answered else REFUSED_OR_ANSWERED)
    ]
    assert not too_long + wrong


def test_other_threads_are_let_in_beside_the_loop_and_not_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    texts = [*range(2 * TEXTS_AT_ONCE + 1)]

    async def on_the_loop() -> list[int]:
        return [*in_turns(texts)]

    assert asyncio.run(on_the_loop()) == texts
    assert not waits
    assert [*in_turns(texts)] == texts
    assert waits == [TURN_SECONDS] * 2


@pytest.mark.slow
def test_structure_in_texts_is_no_structure() -> None:
    text = 'a list of "names": [1, 2], {3} and so on: ' * 200
    (case,) = [case for case in answer_cases() if (case.route, case.name) == ("POST /tokenize", "texts")]
    body = b'{"inputs": [' + b",".join([b'"%b"' % text.replace('"', '\\"').encode()] * 200) + b"]}"
    assert measure(Case(case.route, "structure", lambda _: body), repeats=1).status == 200
