"""Writes down which prompts of a dataset begin alike, for the replay of a run whose log has lengths only.

    python benchmarks/shared_prefixes.py DATASET.jsonl --source "where it comes from" --out FOLDER/prefixes.json

``DATASET.jsonl`` has an object a line with ``input_tok_ids``, as the workloads of casys-kaist/LLMServingSim do. What
comes out is put beside the log (``FOLDER/prefixes.json``), or under ``benchmarks/prefixes``, where a run finds it by
the ``dataset_hash`` of its ``meta.json``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

from batchwright_backends.sim.shared_prefixes import find_shared_prefixes

KNOWN = Path(__file__).resolve().parent / "prefixes"
"""Those of datasets of others, by ``dataset_hash``."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, metavar="DATASET")
    parser.add_argument("--block-size", type=int, default=16, metavar="TOKENS", help="(default: %(default)s)")
    parser.add_argument("--source", required=True, help="where the dataset comes from, and its licence")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    args = parser.parse_args(argv)
    data = args.dataset.read_bytes()
    prompts = [json.loads(line)["input_tok_ids"] for line in data.decode("utf-8").splitlines() if line.strip()]
    found = find_shared_prefixes(prompts, args.block_size, args.source)
    shared = ",\n    ".join(json.dumps(list(rows)) for rows in found.shared)
    args.out.write_text(
        f'{{\n  "source": {json.dumps(found.source)},\n'
        f'  "dataset_hash": "{hashlib.sha256(data).hexdigest()}",\n'
        f'  "block_size": {found.block_size},\n  "shared": [\n    {shared}\n  ]\n}}\n',
        encoding="utf-8",
    )
    blocks = sum(blocks for _, _, blocks in found.shared)
    print(f"{len(found.shared)} of {len(prompts)} prompts begin like an earlier one: {blocks} blocks")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
