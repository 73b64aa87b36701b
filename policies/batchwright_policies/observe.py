"""What vLLM decides, for those who only want to see it."""

from __future__ import annotations

from typing import ClassVar

from batchwright.card import Card
from batchwright_policies.vllm_v1 import VllmV1


class Observe(VllmV1):
    """Inside vLLM, its own scheduler as it is, with nothing but a recording; elsewhere the decisions of ``vllm_v1``.

    Source: vllm-project/vllm 0.32, ``vllm/v1/core/sched/scheduler.py``. ``batchwright_backends.vllm.scheduler`` gives
    vLLM its own scheduler back under this policy, and no hook is asked; parameters are vLLM's own to have, and refused.
    On other backends it is ``vllm_v1``. A step costs O(residents) there.
    """

    card: ClassVar[Card] = Card(
        source="vllm-project/vllm 0.32, vllm/v1/core/sched/scheduler.py",
        rules={
            "inside vLLM: all that its own class decides": "card",
            "elsewhere: who runs, as vllm_v1": "admission",
            "elsewhere: how much of a prompt, as vllm_v1": "chunking",
            "elsewhere: whose blocks are taken, as vllm_v1": "preemption",
        },
        deviations=("outside vLLM, those of vllm_v1",),
        evidence={"property tested": "outside vLLM it decides as vllm_v1 in every step, on random loads"},
    )
