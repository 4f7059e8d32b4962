"""Profiles: how to reach a cluster, under a name, in a file of the user's alone. Tokens are named by their files.

A file a profile, ``NAME.json``, in ``$XDG_CONFIG_HOME/lsmq/profiles`` or ``~/.config/lsmq/profiles``: an object with
the fields of :class:`Profile` that are set. Files are replaced whole, so that whoever reads one reads all of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

import click

from lsmq.plain_files import plain_stat

PROFILE_VARIABLE: Final = "LSMQ_PROFILE"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_MOST_BYTES: Final = 64 * 1024
#: What says where the nodes are and who asks; a profile stands in place of all of them.
_VARIABLES: Final = (
    "LSMQ_URL",
    "LSMQ_ZOOKEEPER",
    "LSMQ_CLUSTER",
    "LSMQ_TOKEN",
    "LSMQ_TOKEN_FILE",
    "LSMQ_CA",
    "LSMQ_CERT",
    "LSMQ_CERT_KEY",
)


@dataclass(frozen=True, slots=True)
class Profile:
    """What options of commands of the same names say. Paths are absolute."""

    url: str | None = None
    zookeeper: str | None = None
    cluster: str | None = None
    token_file: str | None = None
    ca: str | None = None
    cert: str | None = None
    cert_key: str | None = None

    def to_dict(self) -> dict[str, str]:
        """The fields that are set."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def environment(self, before: Mapping[str, str]) -> dict[str, str]:
        """The environment in which commands take what the profile has, and nothing else of its kind."""
        own = {f"LSMQ_{name.upper()}": value for name, value in self.to_dict().items()}
        return {**{name: value for name, value in before.items() if name not in _VARIABLES}, **own}


class Profiles:
    """All profiles of a user. Every method raises ``click.UsageError`` for a name that is none, or is not there."""

    def __init__(self, directory: Path | None = None) -> None:
        """``directory`` is made when something is kept; when left out, it is the user's."""
        self.directory = directory or _default_directory()

    def names(self) -> list[str]:
        if not self.directory.is_dir():
            return []
        return sorted(file.stem for file in self.directory.glob("*.json") if _NAME.fullmatch(file.stem))

    def load(self, name: str) -> Profile:
        """A file that others may change is refused: it says whom a token is shown to."""
        file = self._file(name)
        try:
            plain_stat(file)
            with file.open("rb") as opened:
                if (mode := os.fstat(opened.fileno()).st_mode & 0o777) & 0o077:
                    raise click.UsageError(
                        f"{file}: others may read or write it (its mode is {mode:03o}); chmod 600 it"
                    )
                text = opened.read(_MOST_BYTES)
        except FileNotFoundError as error:
            known = ", ".join(self.names()) or "none yet"
            raise click.UsageError(f"there is no profile {name!r}; there are: {known} (lsmq profile add)") from error
        except OSError as error:
            raise click.UsageError(f"{file}: the profile cannot be read: {error.strerror}") from error
        try:
            found = json.loads(text)
            if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
                raise ValueError("it is no object of texts")
            if unknown := found.keys() - {field.name for field in fields(Profile)}:
                raise ValueError(f"no profile has {', '.join(sorted(unknown))}")
        except ValueError as error:
            raise click.UsageError(
                f"{file} is no profile: {error}; lsmq profile remove {name} takes it away"
            ) from error
        return Profile(**found)

    def save(self, name: str, profile: Profile, *, replace: bool) -> None:
        """Durable on return."""
        file = self._file(name)
        if file.exists() and not replace:
            raise click.UsageError(f"there is a profile {name!r} already; --replace replaces it")
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, temporary = tempfile.mkstemp(dir=self.directory, prefix=".new-")  # of mode 600
        try:
            with os.fdopen(descriptor, "w") as opened:
                json.dump(profile.to_dict(), opened, indent=2)
                opened.write("\n")
                opened.flush()
                os.fsync(opened.fileno())
            Path(temporary).replace(file)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
        self._sync()

    def remove(self, name: str) -> None:
        """Durable on return."""
        try:
            self._file(name).unlink()
        except FileNotFoundError:
            self.load(name)  # raises
        self._sync()

    def _sync(self) -> None:
        directory = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _file(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise click.UsageError(
                f"{name!r} is no name of a profile: 1 to 64 letters, digits, '.', '_' and '-', the first no '.' or '-'"
            )
        return self.directory / f"{name}.json"


def _default_directory() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path("~/.config").expanduser()) / "lsmq" / "profiles"
