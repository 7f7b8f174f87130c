from pathlib import Path

import pytest

from model.processor import has_integer_products, length_step, session_entries


@pytest.mark.parametrize(
    ("text", "has_products", "step"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512_vnni\n", True, 1),
        ("flags\t\t: fpu sse4_2 avx2 avx_vnni\n", True, 1),
        ("flags\t\t: fpu avx2 avx512f\n", False, 1),
        ("flags\t\t: fpu sse4_2\n", False, 4),
        ("Features\t: fp asimd asimddp sve\n", True, 4),
        ("Features\t: fp asimd\n", False, 4),
        ("something else\n", None, 4),
        (None, None, 4),  # it does not guess where the system does not say
    ],
)
def test_asks_for_what_the_kernels_lack(tmp_path: Path, text: str | None, has_products: bool | None, step: int) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    if text is not None:
        cpuinfo.write_text(text)
    assert has_integer_products(cpuinfo) is has_products
    exact = {} if has_products else {"session.x64quantprecision": "1"}
    assert session_entries(fits_16_bits=False, cpuinfo=cpuinfo) == exact
    assert session_entries(fits_16_bits=True, cpuinfo=cpuinfo) == {}
    assert length_step(cpuinfo) == step
