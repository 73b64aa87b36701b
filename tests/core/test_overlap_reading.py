"""Overlap: what reads what is not there yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from batchwright import Policy, Request, StepResult, hookimpl
from core.overlapping import Logged, overlapped, run_all, stopping
from fake_backend import expected_tokens
from faulty import FAULTS, Culprit
from toolbox import drain, expected_of, make_engine, make_request, prompt_of


class Reader:
    """Reads one thing at the end of each step."""

    name = "reader"

    def __init__(self, log: list[str], read: Callable[[Any, StepResult], Any]) -> None:
        self._log, self._read = log, read
        self.seen: list[Any] = []

    @hookimpl
    def step_finished(self, step: Any, result: StepResult) -> None:
        self._log.append("read")
        self.seen.append(self._read(step, result))


@pytest.mark.parametrize(
    ("read", "waits"),
    [
        (lambda step, result: step.end, True),
        (lambda step, result: list(result.token_ids), True),
        (lambda step, result: result.elapsed_ns, True),
        (lambda step, result: dict(result.failed), True),
        (lambda step, result: result.logprobs, True),
        (lambda step, result: step.sampled[0].output_token_ids[:], True),
        (lambda step, result: step.sampled[0].last_token_ns, True),
        (lambda step, result: step.sampled[0].first_token_ns, None),  # only of the step that brought it
        (lambda step, result: step.sampled[0].num_output_tokens, False),
        (lambda step, result: [r.request_id for r in step.sampled], False),
        (lambda step, result: step.sampled[0].prompt_token_ids[:], False),
    ],
)
def test_whoever_reads_it_waits_and_sees_what_he_would_without(read: Any, waits: bool | None) -> None:
    seen, waited = [], []
    for overlap in (False, True):
        log: list[str] = []
        reader = Reader(log, read)
        engine, _ = make_engine(backend=Logged(log), plugins=[reader], overlap=overlap)
        for name in "ab":
            engine.add_request(make_request(name, 5, 3))
        while engine.has_unfinished():
            engine.step()
            log.append("--")
        seen.append(reader.seen)
        waited = [log[i + 1] == "collect" for i, what in enumerate(log) if what == "read"]
    assert seen[1] == seen[0] and len(seen[0]) == 3
    assert waited == ([True, False, False] if waits is None else [waits] * 3)


def test_a_policy_that_looks_at_tokens_decides_as_without() -> None:
    """It evicts whoever said the largest token last."""

    class Largest(Culprit):
        def __init__(self) -> None:
            super().__init__(FAULTS["chunking raises"], most=0)

        @hookimpl
        def preemption(self, step: Any, request: Request) -> Any:
            there = [r for r in step.running if r.is_resident and r.num_output_tokens]
            return max(there, key=lambda r: r.output_token_ids[-1]) if there else super().preemption(step, request)

    tapes = []
    for overlap in (False, True):
        engine, tape = make_engine(Largest(), backend=Logged([], num_blocks=14), overlap=overlap)
        for i in range(5):
            engine.add_request(make_request(str(i), 6, 14))
        drain(engine)
        assert all(r.output_token_ids == expected_of(r) for r in tape.requests.values())
        tapes.append(tape)
    assert tapes[0].preemptions() and tapes[1].steps == tapes[0].steps


def test_somebody_looks_for_a_block_that_an_unknown_token_fills() -> None:
    """With ``visible: scheduled`` a block is shared in the step that fills it: b has just what a says."""
    tapes = []
    for overlap in (False, True):
        engine, tape = make_engine(
            "vllm_v1", backend=Logged([]), overlap=overlap, prefix_cache={"visible": "scheduled"}
        )
        prompt = prompt_of("a", 6)
        engine.add_request(make_request("a", prompt, 9))
        said = expected_tokens(prompt, make_request("a", prompt, 9).sampling_params.seed or 0, 9)
        engine.step()
        engine.step()  # the next step computes the eighth token of a, the last of its second block
        engine.add_request(make_request("b", [*prompt, *said[:3]], 2))
        drain(engine)
        tapes.append(tape)
    assert tapes[0].requests["b"].num_cached == 8
    assert tapes[1].steps == tapes[0].steps


@pytest.mark.parametrize("together", [True, False])
def test_what_a_late_row_would_have_filled_is_shared_with_nobody(together: bool) -> None:
    """The policy looks at tokens, so a is known to stop when its block would be full; b begins with all of a."""

    class Looking(Policy):
        @hookimpl
        def admission(self, step: Any) -> Iterator[Any]:
            for request in step.running:
                _ = request.output_token_ids
            yield step.running if together else [*step.running]
            yield [*step.waiting]

    engine, tape = overlapped(policy=Looking(), prefix_cache={"visible": "scheduled"})
    prompt = prompt_of("a", 5)
    engine.add_request(stopping("a", prompt, after=3))  # with its eighth token, in blocks of four
    for _ in range(3):
        engine.step()
    said = expected_tokens(prompt, make_request("a", prompt, 9).sampling_params.seed or 0, 3)
    engine.add_request(make_request("b", [*prompt, *said, 7], 4))
    streams = run_all(engine)
    assert streams["a"][-1].outputs[0].token_ids == said
    assert streams["b"][-1].outputs[0].token_ids == expected_of(tape.requests["b"])
    assert tape.requests["b"].num_cached == 4 and not tape.events("backend_fault")
