"""Arms are told apart without colour."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest

from batchwright.lab.figures.style import COLOURS, look, shorten


def luminance(colour: str) -> float:
    """Relative luminance by WCAG 2.2."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_no_two_arms_look_alike() -> None:
    looks = [look(place) for place in range(36)]
    assert len({one.letter for one in looks}) == 36
    for a, b in combinations(looks, 2):
        assert (a.colour, a.dashes) != (b.colour, b.dashes)
        assert (a.colour, a.marker) != (b.colour, b.marker)


def test_arms_that_stand_side_by_side_differ_in_everything() -> None:
    for a, b in pairwise([look(place) for place in range(36)]):
        assert a.colour != b.colour
        assert a.dashes != b.dashes
        assert a.marker != b.marker


def test_without_colour_six_arms_are_six_kinds_of_lines() -> None:
    assert len({look(place).dashes for place in range(6)}) == 6
    assert len({look(place).marker for place in range(6)}) == 6


def test_the_first_arms_stand_out_from_the_paper() -> None:
    for colour in COLOURS[:4]:
        assert 1.05 / (luminance(colour) + 0.05) >= 2.9, colour  # WCAG asks for 3 of what is not text


def test_letters_are_those_of_the_command_line() -> None:
    assert [look(place).letter for place in (0, 1, 25, 26)] == ["A", "B", "Z", "A1"]


@pytest.mark.parametrize(("length", "expected"), [(9, "stall_free"[:5] + "…ree"), (10, "stall_free"), (3, "s…e")])
def test_names_are_shortened_in_the_middle(length: int, expected: str) -> None:
    assert shorten("stall_free", length) == expected
    assert len(expected) <= length
