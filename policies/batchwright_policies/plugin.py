"""Entry point of the first-party policies."""

from __future__ import annotations

from batchwright.hookspecs import hookimpl
from batchwright.policy import Policy
from batchwright_policies.dlpm import Dlpm
from batchwright_policies.edf import Edf
from batchwright_policies.hrrn import Hrrn
from batchwright_policies.lpm import Lpm
from batchwright_policies.max_utilization import MaxUtilization
from batchwright_policies.mlfq import Mlfq
from batchwright_policies.no_evict import NoEvict
from batchwright_policies.observe import Observe
from batchwright_policies.orca import Orca
from batchwright_policies.plas import Plas
from batchwright_policies.prefill_first import PrefillFirst
from batchwright_policies.priority import Priority
from batchwright_policies.sjf import Sjf
from batchwright_policies.slo_chunk import SloChunk
from batchwright_policies.srpt import Srpt
from batchwright_policies.stall_free import StallFree
from batchwright_policies.static_batch import StaticBatch
from batchwright_policies.victims import Cheapest, LowestPriority, MostBlocks, Newest
from batchwright_policies.vllm_v1 import VllmV1
from batchwright_policies.vtc import Vtc


@hookimpl
def register_policies() -> dict[str, type[Policy]]:
    """The policies that come with Batchwright."""
    return {
        "cheapest": Cheapest,
        "dlpm": Dlpm,
        "edf": Edf,
        "hrrn": Hrrn,
        "lowest_priority": LowestPriority,
        "lpm": Lpm,
        "max_utilization": MaxUtilization,
        "mlfq": Mlfq,
        "most_blocks": MostBlocks,
        "newest": Newest,
        "no_evict": NoEvict,
        "observe": Observe,
        "orca": Orca,
        "plas": Plas,
        "prefill_first": PrefillFirst,
        "priority": Priority,
        "sjf": Sjf,
        "slo_chunk": SloChunk,
        "srpt": Srpt,
        "stall_free": StallFree,
        "static_batch": StaticBatch,
        "vllm_v1": VllmV1,
        "vtc": Vtc,
    }
