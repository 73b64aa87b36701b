"""Reasons as data: words, JSON, and what is none."""

from __future__ import annotations

from typing import Any

import pytest

from batchwright.trace import Reason
from batchwright.trace.reason import KINDS

Step = Any


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_words_and_survives_json(kind: Any) -> None:
    reason = Reason(kind, "admission", "mine", other="r1", num_needed=3, num_tokens=2, num_pending=4, lacking="blocks")
    assert Reason.from_json(reason.to_json()) == reason
    assert str(reason)


@pytest.mark.parametrize(
    ("values", "error"),
    [({}, ValueError), ({"kind": "who knows"}, ValueError), ({"kind": "hold", "num_free": "3"}, TypeError)],
)
def test_what_is_no_reason(values: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Reason.from_json(values)


def test_names_of_later_versions_are_left_out() -> None:
    assert Reason.from_json({"kind": "decode", "mood": "fine"}) == Reason("decode")
