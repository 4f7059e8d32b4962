"""The plugin for other people's tests, for tests that start a pytest of their own."""

from __future__ import annotations

from importlib.metadata import entry_points


def plugin_options() -> list[str]:
    """What has pytest load it where it does not by itself, since the package is not installed."""
    return [] if any(each.value == "lsmq_pytest" for each in entry_points(group="pytest11")) else ["-p", "lsmq_pytest"]
