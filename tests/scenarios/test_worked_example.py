"""The worked example of the project's issue: budget 20; A 25, B 8, C 6 tokens."""

from __future__ import annotations

from toolbox import make_engine, make_request, play


def test_worked_example() -> None:
    engine, tape = make_engine("prefill_first", T=20)
    play(engine, [make_request("A", 25, 3), make_request("B", 8, 3), make_request("C", 6, 3)])
    assert [step.batch for step in tape.steps] == [
        [("A", 20)],
        [("A", 5), ("B", 8), ("C", 6)],
        [("A", 1), ("B", 1), ("C", 1)],
        [("A", 1), ("B", 1), ("C", 1)],
    ]
    assert [step.sampled for step in tape.steps] == [[], ["A", "B", "C"], ["A", "B", "C"], ["A", "B", "C"]]
