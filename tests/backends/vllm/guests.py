"""Runs of a policy as a guest in vLLM's own scheduler."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from backends.vllm.runs import Run, check_answers, load, offer
from batchwright import Policy
from batchwright_backends.vllm.guest_making import make_scheduler
from peers_vllm import Vllm

POLICIES = ("vllm_v1", "prefill_first", "stall_free:chunk_size=24", "vtc", "priority", "sjf", "mlfq", "lpm")


class GuestOfVllm(Vllm):
    """A guest in vLLM's scheduler."""

    additional_config: ClassVar[dict[str, Any]] = {}

    def _class(self) -> Any:
        return make_scheduler


def guest(policy: Any, num_blocks: int, seats: int, budget: int, **settings: Any) -> Run:
    section = {"policy": policy, **settings}
    made = type("AsGuest", (GuestOfVllm,), {"additional_config": {"batchwright": section}})
    return Run(made(num_blocks, 16, seats, budget))


def own(
    policy: type[Policy], monkeypatch: pytest.MonkeyPatch, num_blocks: int = 200, **settings: Any
) -> tuple[Run, Any]:
    """A run under a policy of this file, and the policy."""
    import batchwright_backends.vllm.guest as module
    from batchwright.active_policy import ActivePolicy

    made = policy()
    monkeypatch.setattr(module, "resolve_policy", lambda *_: ActivePolicy.of(made))
    return guest("vllm_v1", num_blocks, 5, 40, **settings), made


def finish_all(run: Run, seed: int = 3) -> list[Any]:
    rows = load(seed, 9)
    for row in rows:
        offer(run, row)
        run.step()
    run.finish()
    check_answers(run, rows)
    return rows


def shadow_is_true(run: Run) -> None:
    """What the policy sees is what there is."""
    core: Any = run.core
    shadow = core._shadow
    assert [g.request_id for g in shadow.waiting] == [r.request_id for r in core.waiting]
    assert [g.request_id for g in shadow.residents] == [r.request_id for r in core.running]
    assert all(g.is_resident for g in shadow.residents) and all(g.is_waiting for g in shadow.waiting)
    assert {g.request_id for g in shadow.prefilling} == {r.request_id for r in core.running if r.is_prefill_chunk}
    assert set(shadow.guests) == set(core.requests)


class Ahead(Vllm):
    """vLLM's own scheduler, asynchronous."""

    def _class(self) -> Any:
        def make(config: Any, *args: Any, **kwargs: Any) -> Any:
            config.scheduler_config.async_scheduling = True
            return make_scheduler(config, *args, **kwargs)

        return make


def run_ahead(run: Run, rows: Sequence[Any]) -> None:
    """A step is scheduled before the last one's tokens are known, as vLLM's engine does."""
    left, under_way = list(rows), deque[Any]()

    def update() -> None:
        for outputs in run.core.update_from_output(*under_way.popleft()).values():
            for one in outputs.outputs:
                run.told.setdefault(one.request_id, []).extend(one.new_token_ids)
                if one.finish_reason is not None:
                    run.ends[one.request_id] = one.finish_reason

    for _ in range(5000):
        if left:
            offer(run, left.pop(0))
        if not run.core.has_requests():
            break
        told = run.core.schedule()
        under_way.append((told, run.workers.execute(told)))
        if len(under_way) > 1:
            update()
    while under_way:
        update()
