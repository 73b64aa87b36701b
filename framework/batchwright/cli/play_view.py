"""How a step looks: lines of text at any width, the same with and without colour."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from batchwright.cli.play_session import Frame
from batchwright.trace import TracedRequest, TracedStep

_FEW = 4
"""Waiting requests with one reason that are listed one by one; more are told together."""
_LISTED = 6
"""Names that are listed one by one in a line."""
_SMALL_POOL = 512
"""Blocks of a pool up to which each is drawn."""
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BAR = 40
_STYLES = {"batch": "green", "victim": "red", "resident": "yellow", "waiting": "", "hit": "cyan"}


def head(frame: Frame, console: Console) -> RenderableType:
    """What is always to be seen: the step, budget, blocks, and what came and went."""
    step = frame.step
    reasons = step.reasons
    events = Table.grid(padding=(0, 1))
    events.add_column(style="bold", min_width=7)
    events.add_column(overflow="fold")
    if step.error:
        events.add_row("undone" if step.is_undone else "fallback", step.error, style="red")
    for name, what in (
        ("arrived", _listed(step.arrived)),
        ("refused", "\n".join(f"{name}: {why}" for name, why in frame.refused)),
        ("evicted", _listed([_victim(name, reasons[name].other) for name in step.preempted])),
        ("ended", _listed([f"{name} ({why})" for name, why in step.finished.items()])),
    ):
        if what:
            events.add_row(name, what)
    return Group(_title(frame), *_bars(step, console), events)


def _listed(names: Sequence[str]) -> str:
    if len(names) > _LISTED:
        names = [*names[: _LISTED - 2], f"... {len(names) - _LISTED + 1} more", names[-1]]
    return ", ".join(names)


def _victim(name: str, other: str) -> str:
    return f"{name} (for {other})" if other else name


def body(step: TracedStep, console: Console) -> RenderableType:
    """Everybody with the reason, and who holds which block."""
    parts: list[RenderableType] = ["", _requests(step, console)]
    # In order of admission; a letter stays with its request.
    holders = sorted((r for r in step.requests if r.block_table), key=lambda r: r.state == "waiting")
    letters = {r.request_id: _LETTERS[r.arrival_index % len(_LETTERS)] for r in holders}
    if holders:
        parts += ["", _tables(step, holders, letters, console)]
    if step.num_blocks <= _SMALL_POOL:
        parts += ["", _pool(step, holders, letters)]
    return Group(*parts)


def _title(frame: Frame) -> Text:
    step = frame.step
    text = Text.assemble((f"step {step.index}", "bold"), f"   {step.now / 1e9:.6f} s")
    if step.end is not None:
        text.append(f" + {(step.end - step.now) / 1e6:.3f} ms")
    text.append(f"   {step.policy}", style="bold")
    if step.how == "repeat":
        text.append(" (stationary: not asked again)")
    if frame.next_policy:
        text.append(f"   then {frame.next_policy}", style="bold magenta")
    return text


def _bars(step: TracedStep, console: Console) -> list[Text]:
    prompts = sum(r.num_scheduled for r in step.requests if r.reason.kind in ("prompt", "chunk"))
    used = step.max_num_batched_tokens - step.budget
    free_decodes = step.num_decodes if used == prompts and step.num_decodes else 0
    decodes = f"{step.num_decodes:,} decode{'s' if step.num_decodes != 1 else ''}"
    if free_decodes:
        decodes += " exempt"
    held = step.num_blocks - step.free_blocks
    cached = sum(map(bool, step.cached))
    shared = cached - sum(bool(step.cached[b]) for b in {b for r in step.requests for b in r.block_table})
    queues = f"requests; before it {len(step.running):,} resident, {len(step.waiting):,} waiting"
    return [
        _bar("budget", used, step.max_num_batched_tokens, f"tokens: {prompts:,} of prompts, {decodes}", console),
        _bar("batch", len(step.batch), step.max_num_seqs, queues, console),
        _bar("blocks", held, step.num_blocks, f"held; {step.free_blocks:,} free, {shared:,} of them cached", console),
    ]


def _bar(name: str, value: int, most: int, what: str, console: Console) -> Text:
    width = min(_BAR, max(8, console.width - 60))
    filled = min(width, -(-value * width // most)) if most else 0
    full, empty = ("#", ".") if console.options.ascii_only else ("█", "░")
    text = Text.assemble((f"{name:8}", "bold"), (full * filled, "green"), (empty * (width - filled), "dim"))
    return text.append(f" {value:,} of {most:,} {what}")


# Requests -------------------------------------------------------------------------------------------------------


def _requests(step: TracedStep, console: Console) -> RenderableType:
    table = _table()
    table.add_column("request", no_wrap=True)
    table.add_column("was", no_wrap=True)
    table.add_column("runs", justify="right", no_wrap=True)
    table.add_column("why", overflow="fold", ratio=1)
    by_id = step.by_id
    for name in step.batch:
        request = by_id[name]
        done = f"{request.num_scheduled:,}"
        table.add_row(
            _short(request.request_id, console), _was(request), done, str(request.reason), style=_STYLES["batch"]
        )
    out = [r for r in step.requests if not r.reason.ran]
    for request in out:
        if request.reason.was_evicted:
            table.add_row(
                _short(request.request_id, console), _was(request), "-", str(request.reason), style=_STYLES["victim"]
            )
    for request in out:
        if request.state != "waiting" and not request.reason.was_evicted:
            table.add_row(
                _short(request.request_id, console), _was(request), "-", str(request.reason), style=_STYLES["resident"]
            )
    waiting = [r for r in out if r.state == "waiting" and not r.reason.was_evicted]
    for why, group in groupby(waiting, key=lambda r: str(r.reason)):
        members = list(group)
        for name in _together([_short(r.request_id, console) for r in members]):
            table.add_row(name, "waiting", "-", why, style=_STYLES["waiting"])
    return table


def _together(names: Sequence[str]) -> Iterable[str]:
    if len(names) <= _FEW:
        return names
    return [f"{names[0]}\n ... {len(names) - 2} more\n{names[-1]}"]


def _short(name: str, console: Console) -> str:
    """A name of at most a quarter of a line; of a long one both ends are left, since ids often differ in one only."""
    most = max(12, console.width // 4)
    if len(name) <= most:
        return name
    cut = ".." if console.options.ascii_only else "…"
    tail = (most - len(cut)) // 2
    return name[: most - len(cut) - tail] + cut + name[-tail:]


def _was(request: TracedRequest) -> str:
    if request.state == "waiting":
        return "waiting"
    return "prompt" if request.state == "prefilling" else f"decode {request.num_output_tokens}"


def _table() -> Table:
    return Table(box=None, pad_edge=False, header_style="bold underline", expand=True)


# Blocks ---------------------------------------------------------------------------------------------------------


def _tables(
    step: TracedStep, holders: Sequence[TracedRequest], letters: dict[str, str], console: Console
) -> RenderableType:
    table = _table()
    table.add_column("", no_wrap=True)
    table.add_column("holds", no_wrap=True)
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("blocks (* hit in the prefix cache)", overflow="fold", ratio=1)
    for request in holders:
        hits = request.num_cached // step.block_size
        blocks = Text()
        for place, run in enumerate(_runs(request.block_table, hits)):
            first, last, is_hit = run
            name = f"{first}" if first == last else f"{first}-{last}"
            blocks.append((" " if place else "") + name + ("*" if is_hit else ""), _STYLES["hit"] if is_hit else "")
        num = f"{request.num_computed + request.num_scheduled:,}"
        table.add_row(letters[request.request_id], _short(request.request_id, console), num, blocks)
    return table


def _runs(table: Sequence[int], hits: int) -> list[tuple[int, int, bool]]:
    """Blocks in order, those that follow each other told together: first, last, whether they were hits."""
    runs: list[tuple[int, int, bool]] = []
    for place, block in enumerate(table):
        is_hit = place < hits
        if runs and runs[-1][1] == block - 1 and runs[-1][2] == is_hit:
            runs[-1] = (runs[-1][0], block, is_hit)
        else:
            runs.append((block, block, is_hit))
    return runs


def _pool(step: TracedStep, holders: Sequence[TracedRequest], letters: dict[str, str]) -> RenderableType:
    cells = [":" if known else "." for known in step.cached]
    held = {block: 0 for request in holders for block in request.block_table}
    for request in holders:
        for block in request.block_table:
            held[block] += 1
            cells[block] = "+" if held[block] > 1 else letters[request.request_id]
    text = Text("pool", style="bold")
    text.append("    . free   : free, and cached   + held by several\n", style="not bold dim")
    row = Text(style="not bold")
    for start in range(0, len(cells), 8):
        row.append("".join(cells[start : start + 8]) + " ")
    return Text.assemble(text, row)
