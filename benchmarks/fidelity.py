"""How true the simulator is: it replays real runs, and the errors of what it predicts are printed.

    python benchmarks/fidelity.py ../shared/data/groundtruth/rtx4090
    python benchmarks/fidelity.py runs --record a --workload synthetic:rate=2,n=60,prompt=96,output=32
    python benchmarks/fidelity.py runs --record b --workload synthetic:rate=1,n=30,prompt=200,output=uniform(16,48)
    python benchmarks/fidelity.py runs

FOLDER holds either a real vLLM run (``meta.json``, ``requests.jsonl``, kernel tables; see ``real_run.py``), which is
replayed with ``vllm_v1`` and vLLM's own settings; or two recorded runs of a real backend, ``a.json`` and ``b.json``,
which ``--record`` makes: the simulator is calibrated on the first and predicts the second.

Printed are mean, p50, p90, p95 and p99 of TTFT, TPOT and E2E latency, and the total time: measured, predicted and the
error of the prediction, with what was fitted on what. ``--json FILE`` writes the same.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from batchwright.errors import BatchwrightError
from fidelity_recorded import RECORDED, judge_recorded, record
from fidelity_vllm import NUM_NOISY, judge_vllm
from judgement import Judgement, write_judgements


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a real run, or where recorded ones are")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    real = parser.add_argument_group("a real vLLM run")
    real.add_argument("--gpu", help="of the simulator's catalogue, where it does not know the GPU by its driver's name")
    real.add_argument("--model", help="name or config.json, where the catalogue does not know the model by its name")
    real.add_argument("--fit", action="store_true", help="fit the folder's kernel tables, though the GPU is calibrated")
    real.add_argument(
        "--noisy", type=int, default=NUM_NOISY, metavar="N", help="replays with noise (default: %(default)s)"
    )
    own = parser.add_argument_group("recorded runs")
    own.add_argument("--record", choices=RECORDED, help="run a workload for real, and write FOLDER/a.json or b.json")
    own.add_argument("--workload", help="what to record")
    own.add_argument("--backend", default="cpu:smollm2-135m", help="what to record it on (default: %(default)s)")
    own.add_argument("--policy", default="vllm_v1", help="with which policy (default: %(default)s)")
    own.add_argument("--set", dest="sets", action="append", default=[], metavar="A.B=VALUE", help="a setting")
    args = parser.parse_args(argv)
    try:
        if args.record:
            if not args.workload:
                parser.error("--record needs --workload")
            print(record(args.folder, args.record, args.backend, args.policy, args.workload, args.sets))
            return 0
        with tempfile.TemporaryDirectory() as scratch:
            judged = judge(
                args.folder, Path(scratch), gpu=args.gpu, model=args.model, fit=args.fit, num_noisy=args.noisy
            )
    except BatchwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(judged)
    if args.json:
        write_judgements(args.json, [judged])
    return 0


def judge(
    folder: Path,
    scratch: Path,
    *,
    gpu: str | None = None,
    model: str | None = None,
    fit: bool = False,
    num_noisy: int = NUM_NOISY,
) -> Judgement:
    """Predictions of whichever kind of run the folder holds.

    Args:
        folder: a real vLLM run, or two recorded runs.
        scratch: a folder for machines that are fitted.
        gpu, model, fit, num_noisy: see the options of a real vLLM run.

    Raises:
        BatchwrightError: it holds neither, or something in it is broken.
    """
    if (folder / "meta.json").is_file():
        return judge_vllm(folder, scratch, gpu=gpu, model=model, fit=fit, num_noisy=num_noisy)
    return judge_recorded(folder, scratch)


if __name__ == "__main__":
    sys.exit(main())
