"""What is installed, looked for once."""

from __future__ import annotations

from collections.abc import Iterable

from batchwright.plugins import Plugins, load_plugins


class Installed:
    """Plugins of one process, loaded when they are first asked for: it takes as long as many a run."""

    def __init__(self) -> None:
        """Nothing is loaded yet."""
        self._loaded: dict[tuple[str, ...], Plugins] = {}

    def without(self, no_plugins: Iterable[str]) -> Plugins:
        """All that is installed but for these.

        Raises:
            PluginError: one of them cannot be loaded.
            ConfigError: there is no plugin of a name that is left out.
        """
        names = tuple(no_plugins)
        if names not in self._loaded:
            self._loaded[names] = load_plugins(names)
        return self._loaded[names]
