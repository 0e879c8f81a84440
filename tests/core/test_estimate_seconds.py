"""The curve of the cost formula through measured points."""

import pytest

from h3serve.core.estimate_seconds import Growth, fit
from h3serve.core.estimate_work import ModelSize

LENGTHS = (15_000, 33_000, 48_000, 58_000, 74_000)


def test_points_of_a_curve_give_its_rates() -> None:
    curve = Growth(671e12, 678e12)
    found = fit([(rows, curve.seconds(rows)) for rows in LENGTHS])
    assert found.linear == pytest.approx(671e12, rel=1e-9) and found.attention == pytest.approx(678e12, rel=1e-9)


def test_a_point_beside_the_curve_is_seen() -> None:
    curve, small = Growth(700e12, 600e12), ModelSize(hidden=64, inner=64, ffn=128, layers=2)
    points = [(rows, curve.seconds(rows, small) * (1.1 if rows == 58_000 else 1.0)) for rows in LENGTHS]
    assert 0.03 < fit(points, small).distance(points, small) < 0.1
    assert curve.distance(points, small) == pytest.approx(1 - 1 / 1.1)


def test_one_length_is_no_curve() -> None:
    with pytest.raises(ValueError, match="two lengths"):
        fit([(38_010, 5.2), (38_010, 5.3)])
