"""Where a run had a given pass@1: by its noisy curve made monotone, by its exact one where it first was there."""

import pytest

from offleash.train.variants.equal_pass import Position, first_reached, position


@pytest.mark.parametrize(
    ("passes", "target", "place"),
    [
        ([0.2, 0.3, 0.4], 0.35, Position(1, 0.5)),
        ([0.2, 0.3, 0.4], 0.3, Position(0, 1.0)),
        ([0.334, 0.216, 0.277], 0.334, Position(0, 0.0)),  # the base's own: the base, though all later ones fell
        ([0.26, 0.34, 0.36, 0.33, 0.31], 0.35, Position(1, 0.5)),  # before it fell
        ([0.26, 0.34, 0.36, 0.33, 0.31], 0.4, Position(2, 0.0)),  # never: its highest
        ([0.3, 0.3], 0.2, Position(0, 0.0)),
    ],
)
def test_an_exact_curve_is_read_where_it_first_had_the_value(passes, target, place):
    found = first_reached(passes, target)
    assert found.at == place.at
    assert found.part == pytest.approx(place.part)


def test_a_noisy_curve_is_made_monotone_first():
    assert position([0.2, 0.35, 0.25, 0.4], 0.3) == Position(2, 0.0)
    assert position([0.2, 0.3, 0.4], 0.5) == Position(2, 0.0)
    assert Position(1, 0.5).between([0.0, 1.0, 3.0]) == 2.0
