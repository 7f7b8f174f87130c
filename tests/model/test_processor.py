from pathlib import Path

import pytest

from model.processor import has_integer_products, length_step, session_entries

EXACT = {"session.x64quantprecision": "1"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512_vnni\n", True),
        ("flags\t\t: fpu avx_vnni\n", True),
        ("flags\t\t: fpu avx2 avx512f\n", False),
        ("Features\t: fp asimd asimddp\n", True),
        ("Features\t: fp asimd\n", False),
        ("something else\n", None),
    ],
)
def test_knows_processors_that_multiply_integers(tmp_path: Path, text: str, expected: bool | None) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert has_integer_products(tmp_path / "cpuinfo") is expected


def test_does_not_guess_where_the_system_does_not_say(tmp_path: Path) -> None:
    assert has_integer_products(tmp_path / "none") is None
    assert session_entries(fits_16_bits=False, cpuinfo=tmp_path / "none") == EXACT
    assert length_step(tmp_path / "none") == 4


@pytest.mark.parametrize(
    ("text", "entries", "step"),
    [
        ("flags\t\t: fpu sse4_2 avx2 avx512f avx512_vnni\n", {}, 1),
        ("flags\t\t: fpu sse4_2 avx2\n", EXACT, 1),
        ("flags\t\t: fpu sse4_2\n", EXACT, 4),
        ("Features\t: fp asimd asimddp sve\n", {}, 4),
    ],
)
def test_asks_for_what_the_kernels_lack(tmp_path: Path, text: str, entries: dict[str, str], step: int) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    cpuinfo = tmp_path / "cpuinfo"
    assert (session_entries(fits_16_bits=False, cpuinfo=cpuinfo), length_step(cpuinfo)) == (entries, step)
    assert session_entries(fits_16_bits=True, cpuinfo=cpuinfo) == {}
