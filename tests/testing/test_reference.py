"""The reference is short, plain, and shares nothing with what it specifies."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import batchwright.testing
from batchwright.errors import InfeasibleRequestError, PolicyError
from batchwright.limits import Limits
from batchwright.request import Request
from batchwright.sampling_params import SamplingParams
from batchwright.step import Step
from batchwright.testing.reference import Reference
from batchwright.testing.reference_view import View

HERE = Path(batchwright.testing.__file__).parent
FAST = {"scheduler", "block_manager", "free_list", "batch_builder", "results", "rules", "decisions", "state", "queues"}


def test_it_is_at_most_200_lines():
    assert len((HERE / "reference.py").read_text().splitlines()) <= 200


@pytest.mark.parametrize("file", sorted(HERE.glob("reference*.py")), ids=lambda p: p.name)
def test_it_shares_nothing_with_the_fast_scheduler(file):
    imported = {
        node.module.removeprefix("batchwright.")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
    }
    assert not imported & FAST


def test_its_view_has_every_public_attribute_of_a_step():
    core = Reference(num_blocks=4, block_size=4)
    step = View(core, now=7)
    public = {n for n in (*Step.__slots__, *vars(Step)) if not n.startswith("_")}
    assert {n for n in public if not hasattr(step, n)} == set()
    assert (step.now, step.now_s) == (7, 7e-9)


def run_alone(core: Reference) -> list[list[tuple[str, int, int]]]:
    """A ten-line loop without a backend: every token is 1."""
    steps = []
    while core.has_unfinished():
        batch = core.schedule()
        rows = zip(batch.request_ids, batch.num_scheduled.tolist(), batch.num_computed.tolist(), strict=True)
        steps.append(list(rows))
        core.update(batch, [1] * sum(batch.samples.tolist()))
    return steps


def request(name: str, prompt: int, max_tokens: int) -> Request:
    return Request(name, list(range(10, 10 + prompt)), SamplingParams(max_tokens=max_tokens))


def test_the_worked_example():
    core = Reference(num_blocks=100, block_size=4, limits=Limits(max_num_batched_tokens=20))
    for name, prompt in (("A", 25), ("B", 8), ("C", 6)):
        core.add(Request(name, [ord(name)] * prompt, SamplingParams(max_tokens=3)))
    steps = run_alone(core)
    assert steps[0] == [("A", 20, 0)]
    assert steps[1] == [("A", 5, 20), ("B", 8, 0), ("C", 6, 0)]
    assert steps[2] == [("A", 1, 25), ("B", 1, 8), ("C", 1, 6)]


def test_feasible_to_the_last_block():
    core = Reference(num_blocks=2, block_size=4)
    with pytest.raises(InfeasibleRequestError):
        core.add(request("too long", 8, 2))
    core.add(request("just fits", 4, 5))
    assert len(run_alone(core)) == 5
    assert core.blocks.num_free == 2


def test_a_repeated_prompt_computes_its_last_block_again():
    core = Reference(num_blocks=8, block_size=4)
    core.add(request("first", 8, 1))
    run_alone(core)
    core.add(request("second", 8, 1))
    assert run_alone(core) == [[("second", 4, 4)]]


def test_a_fault_leaves_no_trace():
    class Twice:
        chunks = budget_counts_decodes = True

        def admission(self, step):
            yield step.waiting[0]
            yield step.waiting[0]

    core = Reference(Twice(), num_blocks=8, block_size=4)
    core.add(request("r", 9, 2))
    with pytest.raises(PolicyError, match=r"rule 'twice'"):
        core.schedule()
    assert (core.waiting[0].num_computed, core.waiting[0].num_scheduled) == (0, 0)
    assert core.blocks.free == [3, 4, 5, 6, 7, 2, 1, 0]  # given back last to first
    core.swap_policy(core.default())
    assert run_alone(core) == [[("r", 9, 0)], [("r", 1, 9)]]
