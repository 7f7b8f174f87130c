import pytest

from service.http.media import JSON, SAFETENSORS, prefers_safetensors, quality


@pytest.mark.parametrize(
    ("accept", "json", "safetensors"),
    [
        ("application/json", 1, 0),
        ("*/*", 1, 1),
        ("application/*;q=0.5", 0.5, 0.5),
        ("*/*;q=0.1, application/json;q=0.7", 0.7, 0.1),
        ("application/json; q=0, */*", 0, 1),
        ("Application/VND.safetensors ; Q=0.3", 0, 0.3),
        ("application/json;charset=utf-8;q=0.2", 0.2, 0),
        ("application/json;q=x, text/html", 1, 0),
        ("text/html", 0, 0),
        ("", 0, 0),
    ],
)
def test_quality_is_that_of_the_narrowest_range(accept: str, json: float, safetensors: float) -> None:
    assert quality(accept.encode(), JSON) == json
    assert quality(accept.encode(), SAFETENSORS) == safetensors


@pytest.mark.parametrize(
    ("accept", "prefers"),
    [
        (None, False),
        ("*/*", False),
        ("application/*", False),
        ("application/json", False),
        ("application/vnd.safetensors", True),
        ("application/vnd.safetensors, */*", True),
        ("application/vnd.safetensors, application/json", True),
        ("application/vnd.safetensors;q=0.5, application/json", False),
        ("application/vnd.safetensors, application/json;q=0.5", True),
        ("application/vnd.safetensors;q=0", False),
    ],
)
def test_safetensors_are_for_those_who_name_them(accept: str | None, prefers: bool) -> None:
    assert prefers_safetensors(None if accept is None else accept.encode()) is prefers
