"""Policies in slots: each pair is refused with a reason, or runs random workloads to their end with no leaked block.

``BATCHWRIGHT_COMPOSITIONS`` says how many workloads for each pair (`make test-thorough`: 20, and all triples that are
not refused, one each).
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

from batchwright import ConfigError, Need, PluginError, Policy, Request, Step, hookimpl
from batchwright.composition import check_composition
from batchwright.hookspecs import DECISIONS
from batchwright.plugin_checks import hook_methods
from batchwright.plugins import Plugins, load_plugins
from batchwright.resolve import DEFAULT_POLICY, resolve_policy
from batchwright_policies.orca import Orca
from batchwright_policies.plugin import register_policies
from batchwright_policies.prefill_first import PrefillFirst
from policies.drive import Job, run
from policies.test_random_workloads import PARAMS, play

NUM_WORKLOADS = int(os.environ.get("BATCHWRIGHT_COMPOSITIONS", "1"))
THOROUGH = NUM_WORKLOADS > 1
POLICIES = register_policies()
SLOTS = ("admission", "chunking", "reservation", "preemption")
DECIDING = {slot: [n for n, kind in POLICIES.items() if slot in dict(hook_methods(kind))] for slot in SLOTS}
INSTALLED = load_plugins()


def named(name: str) -> dict[str, Any]:
    return {"use": name, **PARAMS.get(name, [{}])[0]}


def made(spec: dict[str, Any]) -> Any:
    return resolve_policy(spec, INSTALLED)  # a fresh one; plugins are not looked for again each time


def refusal(spec: dict[str, Any]) -> str | None:
    try:
        resolve_policy(spec, INSTALLED)
    except ConfigError as error:
        return str(error)
    return None


def pairs(one: str, other: str) -> Iterator[dict[str, Any]]:
    for first, second in itertools.product(DECIDING[one], DECIDING[other]):
        yield {one: named(first), other: named(second)}


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(SLOTS, 2)))
def test_each_pair_is_refused_with_a_reason_or_runs_to_the_end(one: str, other: str) -> None:
    num_run = 0
    for number, spec in enumerate(pairs(one, other)):
        said = refusal(spec)
        if said is not None:
            assert "because" in said and "name one for" in said, said
            continue
        num_run += 1
        for seed in range(NUM_WORKLOADS):
            try:
                play(made(spec), 1000 * number + seed, swaps=False)
            except Exception as error:
                raise AssertionError(f"{spec}, workload {1000 * number + seed}") from error
    assert num_run > 3


@pytest.mark.skipif(not THOROUGH, reason="make test-thorough runs all triples")
@pytest.mark.parametrize("admission", DECIDING["admission"])
def test_each_triple_that_is_not_refused_runs_to_the_end(admission: str) -> None:
    for number, rest in enumerate(itertools.product(*(DECIDING[slot] for slot in SLOTS[1:]))):
        spec = {slot: named(name) for slot, name in zip(SLOTS, (admission, *rest), strict=True)}
        if refusal(spec) is None:
            play(made(spec), number, swaps=False)


def test_a_composite_of_one_policy_is_that_policy() -> None:
    for name, kind in POLICIES.items():
        own = [hook for hook in DECISIONS if hook in dict(hook_methods(kind))]
        if "admission" in own:
            assert refusal(dict.fromkeys(own, name)) is None


NONSENSE = [
    ({"admission": "cheapest"}, "admission is given to 'cheapest', which does not decide it"),
    ({"chunking": "srpt"}, "chunking is given to 'srpt', which does not decide it"),
    ({"admission": "orca"}, r"admission 'orca' needs chunks = False .* its prompts run whole, and the core declares"),
    (
        {"admission": "orca", "chunking": "stall_free"},
        r"and 'stall_free' declares chunks = True.*\(orca, static_batch\)",
    ),
    ({"admission": "orca", "chunking": "orca"}, r"'orca' needs reserves_all = True of whoever decides reservation"),
    (
        {"admission": "static_batch", "chunking": "orca", "reservation": "vllm_v1"},
        "'vllm_v1' declares reserves_all = Fal",
    ),
    ({"admission": "no_evict"}, "'no_evict' needs reserves_all = True .* it evicts nobody, and the core declares"),
    (
        {"admission": "no_evict", "reservation": "no_evict", "preemption": "priority"},
        "'priority' declares preemptive = T",
    ),
    ({"admission": "max_utilization", "reservation": "no_evict"}, "blocks set aside are blocks not used"),
    ({"admission": "max_utilization", "preemption": "srpt"}, "paused for want of blocks only"),
    ({"admission": "stall_free", "chunking": "orca"}, "a whole prompt stalls the decodes beside it"),
    ({"chunking": "slo_chunk"}, "needs decodes_every_step = True .* a decode left out .* the core declares"),
    ({"admission": "prefill_first", "chunking": "slo_chunk"}, "'prefill_first' declares decodes_every_step = False"),
    ({"preemption": "cheapest", "reservation": "orca"}, "nobody is evicted where all blocks are reserved"),
]


@pytest.mark.parametrize(("spec", "said"), NONSENSE, ids=[" ".join(spec.values()) for spec, _ in NONSENSE])
def test_nonsense_is_refused_and_the_message_says_why_and_how_to_go_on(spec: dict[str, str], said: str) -> None:
    message = refusal(spec)
    assert message is not None and re.search(said, message), message
    assert re.search(r"leave \w+ out, or name|name one for \w+ that fits \(", message), message


SENSE: list[dict[str, Any]] = [
    {"admission": "vtc", "chunking": {"use": "stall_free", "chunk_size": 512}, "preemption": "cheapest"},
    {"admission": "prefill_first", "chunking": "stall_free", "preemption": "vllm_v1"},
    {"admission": "no_evict", "reservation": "orca"},  # not its own, but one that promises the same
    {"admission": "orca", "chunking": "static_batch", "reservation": "no_evict", "preemption": "vllm_v1"},
    {"admission": "max_utilization", "preemption": "cheapest"},
    {"admission": "vllm_v1", "chunking": "slo_chunk"},
    {"admission": "srpt", "reservation": "no_evict", "preemption": "srpt"},
    {"chunking": "stall_free"},
]


@pytest.mark.parametrize("spec", SENSE, ids=[" ".join(map(str, spec.values())) for spec in SENSE])
def test_sense_is_not(spec: dict[str, Any]) -> None:
    assert refusal(spec) is None


# What declarations promise -----------------------------------------------------------------------------------------


def declared(name: str) -> Policy:
    return POLICIES[name]()


@pytest.mark.parametrize("name", DECIDING["preemption"])
def test_whoever_is_not_preemptive_evicts_nobody_for_a_newcomer(name: str) -> None:
    """A newcomer that ranks first in everything, and no seat for it."""
    best: dict[str, Any] = {"priority": 0, "deadline_s": 0.0, "predicted_output_tokens": 1, "client_id": "new"}
    worst: dict[str, Any] = {"priority": 9, "deadline_s": 9.0, "predicted_output_tokens": 90, "client_id": "old"}
    jobs = [Job(n, 4, 40, 0.0, 90, worst) for n in "ab"] + [Job("new", 4, 2, 0.3, 2, best)]
    params = {"quantum": 2} if name in ("mlfq", "plas") else {}
    outcome = run({"admission": "vllm_v1", "preemption": {"use": name, **params}}, jobs, residents=2)
    assert bool(outcome.evictions) == declared(name).preemptive


@pytest.mark.parametrize("name", DECIDING["reservation"])
def test_whoever_reserves_all_takes_the_blocks_of_the_whole_answer(name: str) -> None:
    taken: list[int] = []

    def watch(outcome: Any, now: float) -> None:
        taken.append(outcome.scheduler.blocks.num_blocks - outcome.scheduler.blocks.num_free)

    run({"admission": "vllm_v1", "reservation": name}, [Job("a", 4, 9)], bs=4, P=10, watch=watch)
    assert taken[0] == (3 if declared(name).reserves_all else 1)


@pytest.mark.parametrize("name", DECIDING["admission"])
def test_whoever_offers_decodes_in_every_step_stalls_none_for_a_prompt(name: str) -> None:
    jobs = [Job("a", 4, 30, 0.0, 30), Job("b", 300, 2, 0.05, 2)]
    outcome = run({"admission": name, **_needed(name)}, jobs, T=64 if declared(name).chunks else 512)
    gaps = [b - a for a, b in itertools.pairwise(outcome.token_times["a"])]
    stalled = any("a" not in dict(rows) for rows in outcome.batches[1:29])
    assert stalled != declared(name).decodes_every_step, gaps


def _needed(name: str) -> dict[str, str]:
    own = dict(hook_methods(POLICIES[name]))
    return {slot: name for slot in ("chunking", "reservation") if slot in own}


# Needs of one's own --------------------------------------------------------------------------------------------------


class Remembers(PrefillFirst):
    """Its chunking reads what its admission noted."""

    needs = (Need("chunking", "admission", "it reads what its admission noted"),)

    @hookimpl
    def chunking(self, step: Step, request: Request) -> int:
        return min(request.num_pending, step.budget)


def test_a_policy_can_need_itself_in_another_slot() -> None:
    one = Remembers()
    resolve_policy({"admission": one, "chunking": one}, INSTALLED)
    for spec in ({"chunking": one}, {"chunking": one, "admission": Remembers()}, {"chunking": one, "admission": "vtc"}):
        with pytest.raises(
            ConfigError, match=r"must decide admission as well, because it reads what its admission noted"
        ):
            resolve_policy(spec, INSTALLED)
    resolve_policy({"admission": one}, INSTALLED)  # only its chunking relies on that


def test_needs_of_a_policy_that_decides_all_are_not_asked() -> None:
    class Odd(PrefillFirst):
        needs = (Need("admission", "chunking", "of a whim", {"chunks": False}),)

    resolve_policy(Odd(), INSTALLED)
    with pytest.raises(ConfigError, match="of a whim"):
        resolve_policy({"admission": Odd()}, INSTALLED)


def test_a_declaration_that_parameters_change_is_read_from_the_object() -> None:
    class Sometimes(PrefillFirst):
        def __init__(self, chunks: bool) -> None:
            super().__init__()
            self.chunks = chunks

        @hookimpl
        def chunking(self, step: Step, request: Request) -> int:
            return request.num_pending if request.num_pending <= step.budget else 0

    for chunks in (False, True):
        spec = {"admission": Orca(), "chunking": Sometimes(chunks), "reservation": Orca()}
        assert (refusal(spec) is None) == (not chunks)


def test_where_nothing_installed_fits_the_message_names_nobody() -> None:
    with pytest.raises(ConfigError, match=r"name one for chunking that fits, or another for admission$"):
        check_composition({"admission": ("orca", Orca())}, Plugins(), DEFAULT_POLICY)


def test_a_policy_with_parameters_that_have_no_default_can_be_named_in_a_message() -> None:
    from pydantic import Field

    from batchwright import Params

    class NeededParams(Params):
        size: int = Field(description="No default.")

    class Needed(Orca):
        Params = NeededParams

    plugins = Plugins(policies={"needed": Needed})
    with pytest.raises(ConfigError, match=r"that fits \(needed\)"):
        check_composition({"admission": ("orca", Orca())}, plugins, DEFAULT_POLICY)


def test_a_need_that_means_nothing_is_refused_where_it_is_written() -> None:
    with pytest.raises(PluginError, match=r"speaks of decision 'chunkin'; did you mean 'chunking'"):
        Need("admission", "chunkin", "why not")
    with pytest.raises(PluginError, match="names another decision, and says why"):
        Need("admission", "admission", "why not")
    with pytest.raises(PluginError, match="names another decision, and says why"):
        Need("admission", "chunking", "")
