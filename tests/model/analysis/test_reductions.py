import numpy as np
import pytest

from model.analysis.reductions import classical_scaling, rollout
from tests.model.analysis.maps import draw_maps, uniform


def test_layers_without_heads_pass_through(generator: np.random.Generator) -> None:
    layer = draw_maps(generator, 2, 6, 6)
    none = np.zeros((0, 6, 6), dtype=np.float32)
    np.testing.assert_array_equal(rollout([none, layer, none]), rollout([layer]))
    np.testing.assert_array_equal(rollout([none, none]), np.eye(6))
    half = 0.5 * uniform(4)[np.newaxis]  # rows of lost mass are made whole: A~ = (half + I) / 1.5
    np.testing.assert_allclose(rollout([half]), (half[0] + np.eye(4)) / 1.5, atol=1e-7)
    for other in (0, 5, 9):  # its n means nothing
        np.testing.assert_array_equal(rollout([layer, np.zeros((0, other, other), np.float32)]), rollout([layer]))


def distances_of(points: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.norm(points[:, None] - points, axis=-1))


def test_a_plane_is_found_again_up_to_rotation_and_stress_says_what_is_lost(generator: np.random.Generator) -> None:
    distances = distances_of(generator.normal(size=(12, 2)))
    points, stress = classical_scaling(distances)
    np.testing.assert_allclose(distances_of(points), distances, atol=1e-9)
    assert stress == pytest.approx(0, abs=1e-9)
    np.testing.assert_allclose(points.mean(axis=0), 0, atol=1e-9)
    corners = 1.0 - np.eye(4)  # a tetrahedron
    points, stress = classical_scaling(corners)
    assert stress == pytest.approx(np.sqrt(((distances_of(points) - corners) ** 2).sum() / 12))
    assert stress > 0.1
    assert classical_scaling(np.zeros((1, 1)))[0].tolist() == [[0, 0]]
    assert classical_scaling(np.zeros((3, 3)))[1] == 0
