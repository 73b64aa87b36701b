"""Published results, done again in the simulator, one after the other.

python benchmarks/reproduce/all.py [--quick] [--jobs 2]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import fastserve_tails
import hrrn_sessions
import sarathi_capacity
import sjf_budget
import victim_tax
import vtc_clients
from reproduction import Reproduce, main

SCRIPTS: Mapping[str, tuple[Reproduce, int]] = {
    "sarathi_capacity": (sarathi_capacity.reproduce, 3),
    "hrrn_sessions": (hrrn_sessions.reproduce, 3),
    "vtc_clients": (vtc_clients.reproduce, 5),
    "sjf_budget": (sjf_budget.reproduce, 3),
    "victim_tax": (victim_tax.reproduce, 5),
    "fastserve_tails": (fastserve_tails.reproduce, 3),
}
"""What each script does, and with how many seeds by default."""


def run_all(argv: Sequence[str] | None = None) -> int:
    """Each with the same arguments."""
    for reproduce, seeds in SCRIPTS.values():
        main(reproduce, __doc__, argv, seeds=seeds)
        print("\n" + "-" * 80 + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(run_all())
