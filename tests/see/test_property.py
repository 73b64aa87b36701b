"""Whatever a policy does: each request has one reason, it agrees with what happened, and watching changes nothing."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from batchwright.hookspecs import hookimpl
from batchwright.request import Request
from batchwright.trace import ReasonRecorder, read_story
from batchwright.trace.reason import KINDS
from see.drive import SHIPPED, Run, random_policy, runs, shipped


class Moody:
    """Wrappers that change some answers and leave others, by what they see alone."""

    name = "moody"

    @hookimpl(wrapper=True)
    def admission(self, step: Any) -> Any:
        offers = yield

        def some() -> Any:
            for offer in offers:
                if not isinstance(offer, Request) or (offer.arrival_index + step.index) % 5:
                    yield offer

        return some()

    @hookimpl(wrapper=True)
    def chunking(self, step: Any, request: Request) -> Any:
        answer = yield
        return answer - 1 if answer > 1 and request.arrival_index % 2 else answer

    @hookimpl(wrapper=True)
    def preemption(self, step: Any, request: Request) -> Any:
        return (yield)


def test_random_policies() -> None:
    seen: Counter[str] = Counter()
    for seed in (*range(30), 39, 61):  # the last two begin an offer anew, with more of the budget left than before
        rng = random.Random(seed)
        make = random_policy(rng, rng.choice([0.0, 0.0, 0.05]))
        plugins = [Moody()] if seed % 3 == 0 else []
        on_policy_error = rng.choice(["raise", "fallback"])
        plain, watched = runs(seed, make, 50, on_policy_error=on_policy_error, plugins=plugins)
        assert watched.decided == plain.decided
        assert watched.policy_log() == plain.policy_log()
        seen += watched.seen
        seen.update(step.how for step in watched.traced)
    assert set(KINDS) <= set(seen), f"the runs never came to {set(KINDS) - set(seen)}"
    assert seen["fallback"] and seen["policy"]


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_policies(name: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(3):
        # Nothing goes wrong in the last, so that stationary policies are not asked in some steps.
        rates = (0.0, 0.0, 0.0) if seed == 2 else (0.05, 0.02, 0.0)
        options: dict[str, Any] = {"rates": rates, "num_blocks": 24 if seed == 2 else 12, "block_size": 2}
        plain, watched = runs(seed, lambda: shipped(name), 60, **options)
        assert watched.decided == plain.decided
        seen += watched.seen
    assert {"decode", "prompt", "not_offered"} <= set(seen)


def test_a_file_tells_what_the_steps_told(tmp_path: Path) -> None:
    """Every request's story, read from the file, is the reasons of the traced steps, one by one."""
    num_stories = 0
    for seed in range(12):
        rng = random.Random(seed)
        make = random_policy(rng, rng.choice([0.0, 0.05])) if seed % 3 else lambda: shipped("vllm_v1")
        plugins = [Moody()] if seed % 4 == 0 else []
        run = Run(seed, make, watch=True, on_policy_error=rng.choice(["raise", "fallback"]), plugins=plugins)
        path = tmp_path / f"{seed}.jsonl{'.gz' if seed % 2 else ''}"
        with ReasonRecorder(path, run.scheduler):
            run.run(50)
        told: dict[str, list[tuple[int, Any]]] = {}
        for step in run.traced:
            for name, reason in step.reasons.items():
                told.setdefault(name, []).append((step.index, reason))
        for name, expected in told.items():
            chapters = read_story(path, name).chapters
            found: list[tuple[int, Any]] = []
            for chapter in chapters:
                if chapter.first is not None:
                    assert chapter.last is not None and len(chapter.reasons) <= chapter.last - chapter.first + 1
                    found += [(0, reason) for reason in chapter.reasons]
            assert [reason for _, reason in found] == [reason for _, reason in expected]
            num_stories += 1
        assert sorted(run.scheduler._state.requests) == sorted(run.unfinished_by(path))
    assert num_stories > 150
