"""Tables of what scheduling and serving cost, beside peers, and of what experiments find by chance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from table_makers.committed import results
from table_makers.markdown import code, table


def scheduler_cost() -> str:
    """The committed figures of ``benchmarks/scheduler.py``: times, and the worst policy's share of each peer's."""
    figures = results("scheduler")
    peers = ("nano-vllm", "vllm", "yardstick")
    others = (*peers, "sorts_all")

    def short(value: float) -> str:
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

    rows = []
    for row in figures["rows"]:
        ours = {name: value for name, value in row["medians"].items() if name not in others}
        ends = [short(min(ours.values())), short(max(ours.values()))]
        cells = [row["row"], row["unit"], " to ".join(dict.fromkeys(ends))]
        for peer in peers:
            theirs = row["medians"].get(peer)
            worst = max(ours.values()) / theirs if theirs else 0.0
            cells += [short(theirs) if theirs else "", f"{worst:.2g}" if theirs and peer != "yardstick" else ""]
        rows.append(cells[:-1])
    return table(("row", "unit", "ours", "nano-vLLM", "ours / its", "vLLM", "ours / its", "yardstick"), rows)


def peers_on_cpu() -> str:
    """The committed figures of ``benchmarks/peers_cpu.py``."""
    figures = results("peers_cpu")
    names = ("batchwright", "vllm", "transformers")

    def cell(row: Mapping[str, Any], name: str) -> str:
        low, middle, high = row["quartiles"][name]
        return f"{middle:.0f} ({low:.0f} to {high:.0f})"

    rows = [
        [
            row["row"],
            *(cell(row, name) for name in names),
            *(f"{row['ratios'][f'{names[0]}/{name}']:.2f}" for name in names[1:]),
        ]
        for row in figures["rows"]
    ]
    ready = {row["row"].rsplit(", ", 1)[-1]: row["cold_s"] for row in figures["rows"]}
    rows += [
        [f"seconds from start to first answer, {dtype}", *(f"{cold[name]:.0f}" for name in names), "", ""]
        for dtype, cold in ready.items()
    ]
    modes = {name: sorted({row["modes"][name] for row in figures["rows"]}) for name in names[1:]}
    heads = [f"{name}, {' or '.join(modes[name])}" for name in names[1:]]
    return table(("requests", "Batchwright", *heads, "ours / vLLM", "ours / transformers"), rows)


def fleet_mooncake() -> str:
    """The committed figures of ``benchmarks/fleet_mooncake.py``: routers in rows, for each size of the KV pools."""
    figures = results("fleet_mooncake")
    rows = []
    for size in figures["sizes"]:
        tokens = f"{next(iter(size['routers'].values()))['kv_tokens'] / size['replicas'] / 1000:,.0f}k"
        for router, found in size["routers"].items():
            cells = [f"{100 * found['cache_hit_rate']:.1f}"]
            cells += [
                f"{found[name]:,.0f}" for name in ("mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms", "mean_e2el_ms")
            ]
            rows.append([tokens, code(router), *cells, f"{found['busy_imbalance']:.3f}"])
        bounds = f"one cache of their size: {100 * size['pooled']:.1f}; without a bound: {100 * size['unbounded']:.1f}"
        rows.append([tokens, "", bounds, "", "", "", "", ""])
    heads = ("hits (%)", "mean TTFT (ms)", "median", "p99", "mean E2EL (ms)", "busiest / mean")
    return table(("KV tokens of a replica", "router", *heads), rows)


def false_verdicts() -> str:
    """The committed figures of ``benchmarks/aa.py``."""
    figures = results("aa")
    pairs, shifted = figures["pairs"], figures["shifted"]
    rows = []
    for num, found in figures["by_seeds"].items():
        false, width = found["false"], found["false"]["half_width"]
        counts = [f"{false[where]} of {pairs}" for where in ("declared", "primary", "table", "all")]
        rows.append([num, f"±{100 * width:.1f}%", *counts, f"{found['shift']['found']} of {shifted}"])
    head = (
        "seeds",
        "interval of mean ITL (median)",
        "false in mean ITL",
        "in any primary metric",
        "in any of the table",
        "in any at all",
        "shift of 3% found",
    )
    return table(head, rows)
