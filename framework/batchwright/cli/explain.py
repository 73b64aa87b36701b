"""``batchwright explain``: why a request waited, ran, was cut or evicted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchwright.cli.options import Debug

if TYPE_CHECKING:
    from batchwright.trace.story import Chapter, Story


def explain(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What batchwright run --explain wrote.")],
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="Id of the request, such as r000003.")],
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="OUT", help="Write the story to a file as well.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No table.")] = False,
    debug: Debug = False,
) -> None:
    """Say step by step why a request waited, ran, was cut or evicted, and who decided it.

    \b
    Examples:
      batchwright explain why.jsonl r000003
      batchwright explain why.jsonl.gz r000003 --json story.json

    FILE is what batchwright run --explain FILE wrote.

    A row of the table is a stretch of steps in which the same became of the request, with the hook that settled it and
    the plugin that answered: a policy, a plugin that wraps it, or the core where no plugin answers. What no plugin
    settled was settled by a limit. Requests of a workload are called r000000, r000001 and so on, in order of arrival.

    Exit code: 0; 2 when the file cannot be read or has no such request.
    """
    from batchwright.cli.output import check_writable, make_console, make_table, print_table, say
    from batchwright.trace.story import read_story

    check_writable(json_file, "--json")
    story = read_story(file, request)
    console = make_console(quiet)
    on = f" on {story.backend}" if story.backend else ""
    say(console, f"{story.request_id} under {story.arm}{on}:")
    table = make_table(console, "steps", "from (s)", "what became of it, and why", whole=2)
    for chapter in story.chapters:
        when = f"{chapter.start_ns / 1e9:.6f}" if chapter.start_ns is not None else ""
        table.add_row(_steps(chapter), when, chapter.text)
    print_table(console, table)
    if json_file is not None:
        json_file.write_text(json.dumps(_to_json(story)) + "\n", encoding="utf-8")


def _steps(chapter: Chapter) -> str:
    if chapter.first is None:
        return ""
    return str(chapter.first) if chapter.first == chapter.last else f"{chapter.first}-{chapter.last}"


def _to_json(story: Story) -> dict[str, Any]:
    return {
        "request_id": story.request_id,
        "arm": story.arm,
        "policy": story.policy,
        "backend": story.backend,
        "chapters": [
            {
                "first": chapter.first,
                "last": chapter.last,
                "start_ns": chapter.start_ns,
                "text": chapter.text,
                "reasons": [reason.to_json() for reason in chapter.reasons],
            }
            for chapter in story.chapters
        ],
    }
