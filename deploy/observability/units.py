"""Values as people read them, by Grafana's names of units."""

import math

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_BYTES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))
_COUNTS = ((1e6, " M"), (1e3, " k"))


def write_value(value: float, unit: str) -> str:
    """A value with its unit, to three digits; `-` for what is no number."""
    if not math.isfinite(value):
        return "+Inf" if value > 0 else "-"
    if unit == "percentunit":
        return f"{100 * value:.4g} %"
    if unit == "s":
        return _seconds(value)
    if unit in ("bytes", "Bps"):
        return _scaled(value, _BYTES, " B") + ("/s" if unit == "Bps" else "")
    return _scaled(value, _COUNTS, "") + ("/s" if unit == "reqps" else "")


def _seconds(value: float) -> str:
    if value == 0:
        return "0 s"
    if value >= 120:
        return f"{value / 60:.3g} min"
    size, name = next((pair for pair in _TIMES if value >= pair[0]), _TIMES[-1])
    return f"{value / size:.3g} {name}"


def _scaled(value: float, sizes: tuple[tuple[float, str], ...], plain: str) -> str:
    for size, name in sizes:
        if abs(value) >= size:
            return f"{value / size:.3g}{name if name.startswith(' ') else ' ' + name}"
    return f"{value:.3g}{plain}"
