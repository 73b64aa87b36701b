"""The lab: A/B experiments on scheduling policies.

A workload is offered to one arm or more, each an engine with its own settings; requests and steps are recorded, and
metrics, verdicts and reports read only those records::

    from batchwright.config import EngineConfig
    from batchwright.lab import ab, format_report, load_workload

    workload = load_workload("synthetic:rate=8,n=500,prompt=lognormal(512,0.8),output=uniform(16,128)")
    arms = {name: EngineConfig(policy=name) for name in ("prefill_first", "stall_free")}
    print(format_report(ab(arms, workload)))
"""

from batchwright.lab.ab import ab
from batchwright.lab.agree import Agreement, BackendsCompared, compare_backends
from batchwright.lab.agree_report import format_agreement, print_agreement
from batchwright.lab.arrival_times import ArrivalSpec, with_arrivals
from batchwright.lab.arrivals import Arrivals
from batchwright.lab.compare import Comparison, compare
from batchwright.lab.designs.capacities import Capacities
from batchwright.lab.designs.capacity import capacity
from batchwright.lab.designs.capacity_report import format_capacity
from batchwright.lab.designs.sweep import Sweep, sweep
from batchwright.lab.designs.sweep_report import format_sweep
from batchwright.lab.designs.tune import tune
from batchwright.lab.designs.tune_report import format_tuning
from batchwright.lab.designs.tuning import Tuning
from batchwright.lab.load import Load
from batchwright.lab.loading import load_workload
from batchwright.lab.materialize import Offer, materialize, offers, with_token_ids
from batchwright.lab.merging import merge
from batchwright.lab.metrics import METRICS, Metric
from batchwright.lab.plugin_metrics import RequestMetric, RunMetric
from batchwright.lab.prefix_reuse import prefix_reuse
from batchwright.lab.readers import READERS, Reader
from batchwright.lab.recorder import Recorder
from batchwright.lab.records import OfferedRecord, RequestRecord, StepRecord
from batchwright.lab.report import format_report, print_report
from batchwright.lab.resampling import resampled
from batchwright.lab.row import WorkloadRow
from batchwright.lab.row_rules import RowRule, with_rules
from batchwright.lab.run_record import RunRecord
from batchwright.lab.runner import Progress, RunOptions, StreamedRun, run_arm, stream_arm
from batchwright.lab.sessions import waiting_turns
from batchwright.lab.step_records import StepRecords
from batchwright.lab.stream import read_run
from batchwright.lab.summary import Summary, summarize
from batchwright.lab.synthetic import SyntheticSpec
from batchwright.lab.texts import by_length
from batchwright.lab.verdict import Verdict
from batchwright.lab.workload import Workload

__all__ = [
    "METRICS",
    "READERS",
    "Agreement",
    "ArrivalSpec",
    "Arrivals",
    "BackendsCompared",
    "Capacities",
    "Comparison",
    "Load",
    "Metric",
    "Offer",
    "OfferedRecord",
    "Progress",
    "Reader",
    "Recorder",
    "RequestMetric",
    "RequestRecord",
    "RowRule",
    "RunMetric",
    "RunOptions",
    "RunRecord",
    "StepRecord",
    "StepRecords",
    "StreamedRun",
    "Summary",
    "Sweep",
    "SyntheticSpec",
    "Tuning",
    "Verdict",
    "Workload",
    "WorkloadRow",
    "ab",
    "by_length",
    "capacity",
    "compare",
    "compare_backends",
    "format_agreement",
    "format_capacity",
    "format_report",
    "format_sweep",
    "format_tuning",
    "load_workload",
    "materialize",
    "merge",
    "offers",
    "prefix_reuse",
    "print_agreement",
    "print_report",
    "read_run",
    "resampled",
    "run_arm",
    "stream_arm",
    "summarize",
    "sweep",
    "tune",
    "waiting_turns",
    "with_arrivals",
    "with_rules",
    "with_token_ids",
]
