"""The policies of the suite, beside prefill_first, vllm_v1 and stall_free."""

from __future__ import annotations

from batchwright import Policy
from batchwright_policies.dlpm import Dlpm
from batchwright_policies.edf import Edf
from batchwright_policies.hrrn import Hrrn
from batchwright_policies.lpm import Lpm
from batchwright_policies.max_utilization import MaxUtilization
from batchwright_policies.mlfq import Mlfq
from batchwright_policies.no_evict import NoEvict
from batchwright_policies.orca import Orca
from batchwright_policies.plas import Plas
from batchwright_policies.priority import Priority
from batchwright_policies.sjf import Sjf
from batchwright_policies.slo_chunk import SloChunk
from batchwright_policies.srpt import Srpt
from batchwright_policies.static_batch import StaticBatch
from batchwright_policies.victims import Cheapest, LowestPriority, MostBlocks, Newest
from batchwright_policies.vtc import Vtc

WHOLE: dict[str, type[Policy]] = {
    "dlpm": Dlpm,
    "edf": Edf,
    "hrrn": Hrrn,
    "lpm": Lpm,
    "max_utilization": MaxUtilization,
    "mlfq": Mlfq,
    "no_evict": NoEvict,
    "orca": Orca,
    "plas": Plas,
    "priority": Priority,
    "sjf": Sjf,
    "slo_chunk": SloChunk,
    "srpt": Srpt,
    "static_batch": StaticBatch,
    "vtc": Vtc,
}
"""Policies that decide admission and what follows from it."""

VICTIMS: dict[str, type[Policy]] = {
    "cheapest": Cheapest,
    "lowest_priority": LowestPriority,
    "most_blocks": MostBlocks,
    "newest": Newest,
}
"""Policies that decide preemption alone."""

SUITE = {**WHOLE, **VICTIMS}
