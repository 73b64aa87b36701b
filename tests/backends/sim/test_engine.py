"""An engine over the simulator."""

from __future__ import annotations

from batchwright.config import EngineConfig
from batchwright.engine import Engine
from batchwright.hookspecs import hookimpl
from batchwright.request import Request
from batchwright.sampling_params import SamplingParams
from batchwright.step import Step

PROMPTS = [700, 40, 300, 5, 260, 64]
OUTPUTS = [30, 12, 40, 55, 60, 58]


class Recorder:
    """Keeps start, end and size of every step, and counts evictions."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int, int]] = []
        self.num_preempted = 0

    @hookimpl
    def request_preempted(self) -> None:
        self.num_preempted += 1

    @hookimpl
    def step_finished(self, step: Step) -> None:
        assert step.end is not None
        self.steps.append((step.now, step.end, len(step.batch)))


def run(**settings: object) -> tuple[Engine, Recorder, dict[str, list[int]]]:
    recorder = Recorder()
    config = EngineConfig(backend="sim:llama-3.1-8b@h100", **settings)  # type: ignore[arg-type]
    engine = Engine(config, plugins=[recorder])
    requests = []
    for i, (prompt, output) in enumerate(zip(PROMPTS, OUTPUTS, strict=True)):
        request = Request(f"r{i}", [i + 1] * prompt, SamplingParams(max_tokens=100, seed=i))
        engine.add_request(request, num_output_tokens=output)
        requests.append(request)
    while engine.has_unfinished():
        engine.step()
    return engine, recorder, {r.request_id: list(r.output_token_ids) for r in requests}


def test_steps_follow_each_other_on_the_virtual_clock() -> None:
    engine, recorder, outputs = run()
    assert [len(outputs[f"r{i}"]) for i in range(len(OUTPUTS))] == OUTPUTS
    assert recorder.steps[0][0] == 0
    assert all(end == start for (_, end, _), (start, _, _) in zip(recorder.steps, recorder.steps[1:], strict=False))
    assert all(start < end for start, end, _ in recorder.steps)
    assert engine.clock.now_ns() == recorder.steps[-1][1]
    # some 60 steps hold decodes of 5 ms or more; nothing takes a tenth of a second here
    assert 50 * 4.5e6 < engine.clock.now_ns() < len(recorder.steps) * 1e8


def test_neither_policy_nor_budget_changes_a_token() -> None:
    _, _, first = run()
    _, _, second = run(policy="stall_free", max_num_batched_tokens=64, max_num_seqs=3)
    _, recorder, third = run(policy="vllm_v1", num_blocks=88)  # the prompts alone fill them
    assert recorder.num_preempted > 0
    assert first == second == third


def test_the_same_run_takes_the_same_time() -> None:
    assert run()[1].steps == run()[1].steps
