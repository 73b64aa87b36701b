"""The Python examples of the pages are run, and do what the pages say."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from batchwright import Limits, Policy, Request, Router, SamplingParams, Scheduler
from batchwright.plugin_checks import hook_methods
from docs.blocks import PAGES, ROOT, Block, blocks

WITH_PYTHON = [page for page in PAGES if blocks(page, "python")]
IDS = [str(page.relative_to(ROOT)) for page in WITH_PYTHON]


@pytest.fixture
def space() -> Iterator[ModuleType]:
    """A module to run a page's blocks in, one after the other."""
    module = ModuleType("_page_of_the_docs")
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def run(block: Block, space: ModuleType) -> None:
    # Filled up with empty lines, so that tracebacks give the line of the page.
    source = "\n" * block.line + block.text
    exec(compile(source, str(block.page), "exec", dont_inherit=True), vars(space))


def run_page(page: Path, space: ModuleType) -> list[Block]:
    ran = [b for b in blocks(page, "python") if b.is_run and not b.needs_model]
    for block in ran:
        run(block, space)
    return ran


@pytest.mark.parametrize("page", WITH_PYTHON, ids=IDS)
def test_blocks_run(page: Path, space: ModuleType) -> None:
    run_page(page, space)


@pytest.mark.parametrize("page", WITH_PYTHON, ids=IDS)
def test_output_is_as_shown(page: Path, space: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """A text block right behind a Python block is what that block prints."""
    lines = page.read_text(encoding="utf-8").splitlines()
    shown = {b.line: b.text for b in blocks(page, "text")}
    for block in blocks(page, "python"):
        if not block.is_run or block.needs_model:
            continue
        capsys.readouterr()
        run(block, space)
        end = block.line + block.text.count("\n") + 1
        behind = next((n for n in range(end + 1, len(lines) + 1) if lines[n - 1].strip()), None)
        if behind in shown:
            assert capsys.readouterr().out == shown[behind]


@pytest.mark.parametrize(
    "block", [b for p in PAGES for b in blocks(p, "python") if b.needs_model], ids=lambda b: b.name
)
def test_blocks_with_the_model_run(
    block: Block, space: ModuleType, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(block, space)
    out = capsys.readouterr().out
    assert "Paris" in out
    assert "length" in out or "stop" in out


def test_the_readme_shows_an_impatient_client(space: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = [b for b in blocks(ROOT / "README.md", "python") if "AsyncEngine" in b.text]
    assert "break" in block.text and "True" in block.text
    run(block, space)
    assert capsys.readouterr().out == "True\n"


def test_the_readme_drives_the_scheduler_in_ten_lines() -> None:
    (block,) = [b for b in blocks(ROOT / "README.md", "python") if "Scheduler(" in b.text]
    code = [line for line in block.text.splitlines() if line.strip()]
    assert len(code) <= 10
    assert "Engine" not in block.text and "ackend" not in block.text


def test_the_readmes_policy_has_thirty_lines() -> None:
    (block,) = [b for b in blocks(ROOT / "README.md", "python") if b.file]
    code = [line for line in block.text.splitlines() if line.strip()]
    assert len(code) <= 30
    assert "@hookimpl" in block.text


def run_to_the_end(policy: Policy, plugins: list[object], seed: int) -> dict[str, str]:
    """Forty requests under memory so short that somebody is evicted; id to finish reason."""
    rng = random.Random(seed)
    scheduler = Scheduler(
        policy,
        num_blocks=24,
        block_size=4,
        limits=Limits(max_num_seqs=8, max_num_batched_tokens=16, max_num_residents=6),
        plugins=plugins,
    )
    ended: dict[str, str] = {}
    coming = [
        Request(
            f"r{i}",
            [rng.randrange(3) for _ in range(rng.randint(1, 30))],
            SamplingParams(max_tokens=rng.randint(1, 12)),
            deadline_s=rng.choice([None, 1.0, 2.0]),
            client_id=rng.choice("ab"),
        )
        for i in range(40)
    ]
    now = 0
    while coming or scheduler.has_unfinished():
        for _ in range(rng.randint(0, 3)):
            if coming:
                scheduler.add(coming.pop())
        now += 1_000_000
        batch = scheduler.schedule(now)
        step = scheduler.update(batch, [rng.randrange(3) for row in batch.samples.tolist() if row], now + 500_000)
        ended.update((r.request_id, str(r.finish_reason)) for r in step.finished)
    assert not scheduler.num_observer_faults
    assert scheduler.blocks.num_free == 24
    return ended


def plugins_of(space: ModuleType) -> tuple[dict[str, type[Policy]], dict[str, Any]]:
    """Policies of a page, and its other classes with hooks."""
    classes = {n: v for n, v in vars(space).items() if isinstance(v, type) and v.__module__ == space.__name__}
    policies = {n: c for n, c in classes.items() if issubclass(c, Policy)}
    of_fleets = {n for n, c in classes.items() if issubclass(c, Router)}
    others = {n: c for n, c in classes.items() if n not in {*policies, *of_fleets} and list(hook_methods(c))}
    return policies, others


@pytest.mark.parametrize("page", WITH_PYTHON, ids=IDS)
def test_policies_and_observers_of_the_pages_work(page: Path, space: ModuleType) -> None:
    run_page(page, space)
    policies, others = plugins_of(space)
    for cls in policies.values():
        for seed in range(3):
            ended = run_to_the_end(cls(), [], seed)
            assert set(ended.values()) == {"length"} and len(ended) == 40
    if others:
        ended = run_to_the_end(next(iter(policies.values()), Policy)(), [cls() for cls in others.values()], 1)
        assert len(ended) == 40


def test_examples_of_hooks_do_what_they_say(space: ModuleType) -> None:
    """The page's observers count what happened, its shedder refuses, its reservation never preempts."""
    from batchwright import RefusedRequestError

    run_page(ROOT / "docs" / "hooks.md", space)
    _, others = plugins_of(space)
    counters = {name: cls() for name, cls in others.items()}
    run_to_the_end(space.CheapestVictim(), list(counters.values()), 2)
    assert counters["Reasons"].count == {"length": 40}
    assert sum(counters["Arrivals"].by_client.values()) == 40
    assert counters["Throughput"].num_tokens > 40
    assert counters["CacheHits"].num_cached > 0

    class Evicted:
        count = 0

        @space.hookimpl
        def request_preempted(self) -> None:
            self.count += 1

    evicted = Evicted()
    run_to_the_end(space.CheapestVictim(), [evicted], 2)
    assert evicted.count
    evicted = Evicted()
    run_to_the_end(space.NeverPreempts(), [evicted], 2)
    assert not evicted.count

    scheduler = Scheduler(space.ShedsLoad(), num_blocks=8, block_size=4)
    for i in range(1000):
        scheduler.add(Request(str(i), [1], SamplingParams(max_tokens=1)))
    with pytest.raises(RefusedRequestError, match="1000 requests"):
        scheduler.add(Request("one too many", [1], SamplingParams(max_tokens=1)))


def test_the_wrapper_of_the_page_holds_newcomers_back(space: ModuleType) -> None:
    run_page(ROOT / "docs" / "hooks.md", space)
    for plugins, most in (([], 4), ([space.AtMostOneNewcomer()], 1)):
        scheduler = Scheduler(space.DecodesFirst(), num_blocks=64, block_size=4, plugins=plugins)
        for i in range(4):
            scheduler.add(Request(str(i), [1, 2], SamplingParams(max_tokens=2)))
        assert len(scheduler.schedule()) == most
