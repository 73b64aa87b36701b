"""The tables of these pages that follow the code: ``python docs/tables.py`` writes them anew.

A table stands between ``<!-- table: KEY -->`` and ``<!-- end of table -->``. ``tests/docs`` fails while a page differs
from what this module makes of the code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from batchwright.lab.endpoint.options import EndpointOptions
from batchwright.lab.files.columns import REQUEST_COLUMNS, STEP_COLUMNS
from batchwright.limits import Limits
from batchwright.predictors.plugin import register_predictors
from batchwright.request import Request
from batchwright.routers.plugin import register_routers
from batchwright.step import Step
from batchwright_backends.sim.backend import SimOptions
from batchwright_backends.torch.options import TorchOptions
from batchwright_backends.vllm.lab.options import VllmOptions
from table_makers.classes import of_attributes, of_model, router_card, shown
from table_makers.costs import false_verdicts, fleet_mooncake, peers_on_cpu, scheduler_cost
from table_makers.records import columns, latencies, metrics, recorded_request
from table_makers.reproductions import REPRODUCED, reproduced, reproduction
from table_makers.settings import config, environment, synthetic
from table_makers.simulator import agreement_on_cpu, fidelity, gpus, models, residuals, sim_growth, sim_speed
from table_makers.vllm import vllm_hooks, vllm_lacks, vllm_overhead, vllm_recorded, vllm_recording

FOLDER = Path(__file__).parent
_TABLE = re.compile(r"(<!-- table: (?P<key>[\w. -]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def makers() -> dict[str, Callable[[], str]]:
    """What makes the table of each key."""
    return {
        "step": lambda: shown(Step),
        "request": lambda: shown(Request),
        "limits": lambda: shown(Limits),
        "config": config,
        "environment": environment,
        "synthetic": synthetic,
        "metrics": metrics,
        "latencies": latencies,
        "request columns": lambda: columns(REQUEST_COLUMNS),
        "step columns": lambda: columns(STEP_COLUMNS),
        "recorded request": recorded_request,
        "sim options": lambda: of_attributes(SimOptions),
        "torch options": lambda: of_attributes(TorchOptions),
        "endpoint options": lambda: of_attributes(EndpointOptions),
        "vllm options": lambda: of_attributes(VllmOptions),
        "gpus": gpus,
        "residuals": residuals,
        "models": models,
        "scheduler cost": scheduler_cost,
        "peers_cpu": peers_on_cpu,
        "fidelity vllm": lambda: fidelity(
            "fidelity_rtx4090", {"uncalibrated": "from kernel tables", "calibrated": "host from the log"}
        ),
        "fidelity cpu": lambda: fidelity("fidelity_cpu", {"calibrated": "predicted"}),
        "agree cpu": agreement_on_cpu,
        "aa": false_verdicts,
        "sim speed": sim_speed,
        "sim growth": sim_growth,
        "fleet mooncake": fleet_mooncake,
        "reproduce": reproduced,
        **{f"reproduce {name}": (lambda name=name: reproduction(name)) for name in REPRODUCED},
        "vllm overhead": vllm_overhead,
        "vllm recording": vllm_recording,
        "vllm recorded": vllm_recorded,
        "vllm hooks": vllm_hooks,
        "vllm lacks": vllm_lacks,
        **{f"predictor {n}": (lambda k=k: of_model(k.Params)) for n, k in register_predictors().items()},
        **{f"router {n}": (lambda k=k: of_model(k.Params)) for n, k in register_routers().items()},
        **{f"card of {n}": (lambda k=k: router_card(k)) for n, k in register_routers().items()},
    }


def filled(text: str, made: Mapping[str, Callable[[], str]]) -> str:
    """A page with all its tables made anew.

    Raises:
        KeyError: a table of a key that nothing makes.
    """
    return _TABLE.sub(lambda m: f"{m[1]}\n{made[m['key']]()}\n{m[3]}", text)


def main() -> int:
    """Write all pages; returns 0."""
    made = makers()
    for page in sorted(FOLDER.glob("*.md")):
        old = page.read_text(encoding="utf-8")
        new = filled(old, made)
        if new != old:
            page.write_text(new, encoding="utf-8")
            print(f"{page.name}: tables written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
