"""A study of Optuna, made so that it goes on where it stopped as if it never had."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from batchwright.errors import ConfigError
from batchwright.lab.designs.space import Space, Value
from batchwright.lab.files.releases import differing_releases

STUDY = "study.journal"
"""Name of a study's file in the folder of an experiment."""

_NAME = "batchwright"
_ABOUT = "about"


class Study:
    """Suggests parameters, and is told what came of them.

    What it suggests depends on the seed, the trial's number and the trials before it: the sampler is made anew for each
    trial. So a study that was interrupted suggests what it would have suggested.

    Args:
        spaces: where each parameter is searched.
        maximize: whether more of the goal is better.
        seed: of the sampler.
        path: of the file to keep it in; None: it is kept in memory.
        about: what it is a study of: one in a file goes on only with the same.

    Raises:
        ConfigError: Optuna is not installed, or the file holds a study of something else.
    """

    def __init__(
        self, spaces: Sequence[Space], *, maximize: bool, seed: int, path: Path | None, about: Mapping[str, Any]
    ) -> None:
        self._optuna = _optuna()
        self._spaces = spaces
        self._seed = seed
        storage = None
        if path is not None:
            from optuna.storages import JournalStorage
            from optuna.storages.journal import JournalFileBackend

            path.parent.mkdir(parents=True, exist_ok=True)
            storage = JournalStorage(JournalFileBackend(str(path)))
        self._study = self._optuna.create_study(
            storage=storage, study_name=_NAME, direction="maximize" if maximize else "minimize", load_if_exists=True
        )
        there = self._study.user_attrs.get(_ABOUT)
        if there is None:
            self._study.set_user_attr(_ABOUT, dict(about))
        elif there != dict(about):
            different = [name for name in about if there.get(name) != about[name]]
            if different == ["releases"]:
                said = differing_releases(there.get("releases") or {}, about["releases"])
                raise ConfigError(
                    f"{path} holds a study whose trials were made with others: {said}; go on with those, or name "
                    "another folder, or begin anew with --overwrite"
                )
            raise ConfigError(
                f"{path} holds a study of something else ({', '.join(different)} differ): name another folder"
            )

    def begin_with(self, values: Mapping[str, Value]) -> None:
        """Let the first trial have these values, unless there is a trial already."""
        if not self._study.trials:
            self._study.enqueue_trial(dict(values))

    @property
    def results(self) -> dict[int, dict[str, Any]]:
        """What was told of each trial that is done, by its number."""
        found: dict[int, dict[str, Any]] = {}
        for trial in self._study.trials:
            if trial.state.is_finished():
                found[trial.number] = trial.user_attrs["result"]
        return found

    def ask(self, num: int) -> list[tuple[Any, dict[str, Value]]]:
        """So many trials to make: those that were begun and not done come first.

        Returns:
            Of each a handle for :meth:`tell`, and the parameters.
        """
        begun = [t for t in self._study.trials if t.state.name == "RUNNING"]
        asked: list[tuple[Any, dict[str, Value]]] = []
        for place in range(num):
            number = begun[place].number if place < len(begun) else self._next()
            self._study.sampler = self._optuna.samplers.TPESampler(seed=self._seed_of(number))
            again = self._optuna.Trial(self._study, begun[place]._trial_id) if place < len(begun) else None
            trial = again if again is not None else self._study.ask()
            asked.append((trial, {space.name: space.suggested(trial) for space in self._spaces}))
        return asked

    def _next(self) -> int:
        """The number of the trial that ``ask`` will give."""
        waiting = [t.number for t in self._study.trials if t.state.name == "WAITING"]
        return min(waiting) if waiting else len(self._study.trials)

    def tell(self, trial: Any, value: float | None, excess: Mapping[str, float], result: Mapping[str, Any]) -> None:
        """What came of a trial.

        Args:
            trial: as :meth:`ask` gave it.
            value: of the goal; None: it failed.
            excess: by how much each bound is missed, as a share of its limit; at most 0 where it is met.
            result: what to keep of it, as a JSON object.
        """
        for name, share in excess.items():
            trial.set_constraint(name, share)
        trial.set_user_attr("result", dict(result))
        if value is None:
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(trial, value)

    def _seed_of(self, number: int) -> int:
        digest = hashlib.sha256(f"{self._seed} {number}".encode()).digest()
        return int.from_bytes(digest[:4], "little")


def _optuna() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what it imports itself
            import optuna
    except ImportError as error:
        raise ConfigError(
            f"tuning needs Optuna, which cannot be imported here ({error}): pip install 'batchwright[tune]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
