import numpy as np
import pytest

from model.analysis.scaling import classical_scaling


def distances_of(points: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.norm(points[:, None] - points, axis=-1))


def test_points_of_a_plane_are_found_again_up_to_rotation(generator: np.random.Generator) -> None:
    distances = distances_of(generator.normal(size=(12, 2)))
    points, stress = classical_scaling(distances)
    np.testing.assert_allclose(distances_of(points), distances, atol=1e-9)
    assert stress == pytest.approx(0, abs=1e-9)
    np.testing.assert_allclose(points.mean(axis=0), 0, atol=1e-9)


def test_stress_says_what_a_plane_cannot_hold() -> None:
    corners = 1.0 - np.eye(4)  # a tetrahedron
    points, stress = classical_scaling(corners)
    found = distances_of(points)
    assert stress == pytest.approx(np.sqrt(((found - corners) ** 2).sum() / 12))
    assert stress > 0.1


def test_small_and_empty() -> None:
    assert classical_scaling(np.zeros((1, 1)))[0].tolist() == [[0, 0]]
    assert classical_scaling(np.zeros((3, 3)))[1] == 0
