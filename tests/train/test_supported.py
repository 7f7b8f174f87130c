from typing import Any

import pytest

from export.errors import UnsupportedModel
from tests.networks import vary
from train.supported import require_fittable


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pre_norm": True, "sandwich_norm": True}, "no form of sandwich_norm True: take another"),
        ({"shared_layers": (0, 0)}, r"no form of shared_layers \(0, 0\)"),
    ],
)
def test_what_the_fit_does_not_know_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        require_fittable(vary(**change))


def test_grouped_and_causal_networks_are_fitted() -> None:
    require_fittable(vary(num_key_value_heads=(2, 1), causal=True, query_key_norm=True, score_scale=1.0))
