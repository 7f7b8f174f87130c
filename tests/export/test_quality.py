import math

import pytest
import torch

from export.errors import QualityError
from export.precision import THRESHOLDS
from export.quality import PrecisionQuality


@pytest.mark.parametrize(
    ("cosines", "passes"),
    [
        ([0.999] * 99 + [0.991], True),
        ([0.9975] * 100, False),
        ([0.9999] * 99 + [0.985], False),
        ([0.9999] * 99 + [math.nan], False),
    ],
)
def test_the_gate_looks_at_the_mean_and_the_worst(cosines: list[float], passes: bool) -> None:
    quality = PrecisionQuality(torch.tensor(cosines, dtype=torch.float64).numpy(), [])
    if passes:
        quality.check(THRESHOLDS["int8"])
    else:
        with pytest.raises(QualityError, match="over 100 held-out texts .* expected at least 0.998 and 0.99"):
            quality.check(THRESHOLDS["int8"])
