"""Offline generation in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from batchwright.config import EngineConfig
from batchwright.engine import Engine
from batchwright.errors import InvalidRequestError
from batchwright.outputs import RequestOutput
from batchwright.plugins import Plugins, load_plugins
from batchwright.request import Request
from batchwright.sampling_params import SamplingParams

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or ``{"prompt": text}`` / ``{"prompt_token_ids": ids}``."""


class LLM:
    """A model that answers lists of prompts, under any policy.

        llm = LLM("smollm2-135m", policy="stall_free")
        for output in llm.generate(["Hello", "Once upon a time"], SamplingParams(max_tokens=32)):
            print(output.outputs[0].text)

    Attributes:
        engine: what runs it.
    """

    def __init__(self, model: str, *, config: EngineConfig | None = None, **settings: Any) -> None:
        """Loads a model.

        Args:
            model: a backend in full (``cpu:smollm2-135m``, ``sim:llama-3.1-8b@h100``), or the model alone, which runs
                on a CUDA GPU where there is one, else on the CPU.
            config: settings; ``settings`` win over it.
            settings: fields of :class:`EngineConfig`: ``policy``, ``max_num_seqs``, ``num_blocks``, …

        Raises:
            ConfigError, PluginError, BackendError: something of it cannot be had; the message says what to do.
        """
        base = config.model_dump(exclude_unset=True) if config is not None else {}
        chosen = EngineConfig.parse({**base, **settings})
        installed = load_plugins(chosen.no_plugins)
        chosen = EngineConfig.parse({**base, **settings, "backend": choose_backend(model, installed)})
        self.engine = Engine(chosen, installed=installed)
        self._num_requests = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete prompts; outputs come in the order of the prompts.

        Args:
            prompts: one or many; see :data:`Prompt`.
            sampling_params: one for all, or one for each prompt.
            use_tqdm: show a progress bar on the terminal (named as in vLLM's API).

        Raises:
            RequestError: a prompt cannot be taken; none of them was run.
        """
        many = _as_list(prompts)
        if isinstance(sampling_params, Sequence):
            params: list[SamplingParams | None] = list(sampling_params)
            if len(params) != len(many):
                raise InvalidRequestError(
                    f"{len(params)} sampling_params for {len(many)} prompts: give one, or one each"
                )
        else:
            params = [sampling_params] * len(many)
        ids: list[str] = []
        try:
            for prompt, param in zip(many, params, strict=True):
                request, text = as_request(self.engine, f"llm-{self._num_requests}", prompt, param)
                request.arrival_ns = self.engine.clock.now_ns()
                self.engine.add_request(request, prompt=text)
                self._num_requests += 1
                ids.append(request.request_id)
            return self._run(ids, use_tqdm)
        except BaseException:
            for request_id in ids:
                if self.engine.scheduler.get(request_id) is not None:
                    self.engine.abort(request_id)
            raise

    def _run(self, ids: list[str], use_tqdm: bool) -> list[RequestOutput]:
        done: dict[str, RequestOutput] = {}
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, disable=not (use_tqdm and console.is_terminal)) as progress:
            task = progress.add_task("Requests", total=len(ids))
            self.engine.on_abort = lambda output: done.update({output.request_id: output})
            while self.engine.has_unfinished():
                for output in self.engine.step():
                    if output.finished:
                        done[output.request_id] = output
                        progress.advance(task)
        self.engine.on_abort = None
        return [done[i] for i in ids]

    def close(self) -> None:
        """Give back the model's memory."""
        self.engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def choose_backend(model: str, plugins: Plugins) -> str:
    """A backend's full name for a model: as given, or ``cuda:`` where that can run here, else ``cpu:``."""
    if model.partition(":")[0] in plugins.backends and ":" in model:
        return model
    cuda = plugins.backends.get("cuda")
    return f"cuda:{model}" if cuda is not None and cuda.available() is None else f"cpu:{model}"


def as_request(
    engine: Engine, request_id: str, prompt: Prompt, params: SamplingParams | None, **fields: Any
) -> tuple[Request, str | None]:
    """A request for a prompt in any form, and its text.

    Raises:
        InvalidRequestError: text without a tokenizer, or a form that is not known.
    """
    if isinstance(prompt, Mapping):
        known = {"prompt", "prompt_token_ids"}
        if not set(prompt) <= known or not prompt:
            raise InvalidRequestError(f"a prompt as a mapping has prompt or prompt_token_ids, not {sorted(prompt)}")
        inner: str | Sequence[int] = prompt["prompt_token_ids"] if "prompt_token_ids" in prompt else prompt["prompt"]
        if not isinstance(inner, str):
            return Request(request_id, inner, params, **fields), prompt.get("prompt")
    else:
        inner = prompt
    if not isinstance(inner, str):
        return Request(request_id, inner, params, **fields), None
    if engine.backend.tokenizer is None:
        raise InvalidRequestError(f"{engine.backend.name} has no tokenizer: give the prompt as token ids")
    return Request(request_id, engine.backend.tokenizer.encode(inner), params, **fields), inner


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    items: list[Any] = list(prompts)
    if items and all(isinstance(i, int) for i in items):
        return [items]
    return items
