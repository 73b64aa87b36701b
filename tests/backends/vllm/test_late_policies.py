"""Policies that take too long within C, where nobody can end them: the engine goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="needs vLLM, which is not installed: make check-vllm")

from backends.vllm.runs import BLOCK, Run, check_answers, load, offer
from peers_vllm import Vllm, guest, host

LATE = """
import numpy as np
from batchwright import Policy, hookimpl

BIG = np.ones((700, 700))


class Late(Policy):
    @hookimpl
    def chunking(self, step, request):
        BIG @ BIG  # no call: nothing is looked at between its end and what asked
"""


@pytest.mark.parametrize("make", [host, guest])
def test_a_policy_that_returns_late_out_of_c_ends_no_engine(make: type[Vllm], tmp_path: Path) -> None:
    path = tmp_path / "late.py"
    path.write_text(LATE)
    kind = type(make("vllm_v1", 16, BLOCK, 4, 40))
    section = {"batchwright": {"policy": f"{path}:Late", "max_policy_ms": 5}}
    run = Run(type("Late", (kind,), {"additional_config": section})(60, BLOCK, 4, 40))
    rows = load(6, 5)
    for row in rows:
        offer(run, row)
    run.finish()
    check_answers(run, rows)
    assert run.core._watch.num_held > 3
