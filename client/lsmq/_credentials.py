"""What a client shows to nodes: a bearer token, given, from a function or a file, or from the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypedDict

from lsmq.errors import InvalidRequest
from lsmq.plain_files import plain_stat

TOKEN_VARIABLE = "LSMQ_TOKEN"
TOKEN_FILE_VARIABLE = "LSMQ_TOKEN_FILE"
_MOST_BYTES = 64 * 1024


#: A token, or what gives the one that is good now, without waiting for anything: it is called for each request.
TokenSource = str | Callable[[], str]


class CredentialOptions(TypedDict, total=False):
    token: TokenSource | None
    token_file: str | Path | None


class Credentials:
    """Where a node takes a token no longer, its file or function is asked again: it may have been rotated, or have
    expired while a request was held."""

    def __init__(self, token: TokenSource | None = None, token_file: str | Path | None = None) -> None:
        """Raises ``InvalidRequest``."""
        self._file = None if token_file is None else Path(token_file)
        self._source = token if callable(token) else None
        self._token = _checked(token.strip(), "token") if isinstance(token, str) else None
        if self._file is not None:
            self._token = _read(self._file)

    @classmethod
    def given(cls, token: TokenSource | None, token_file: str | Path | None) -> Credentials:
        """With neither, what the environment says. Raises ``InvalidRequest``."""
        if token is not None and token_file is not None:
            raise InvalidRequest("give token or token_file, not both", field="token")
        if token is None and token_file is None:
            token = os.environ.get(TOKEN_VARIABLE) or None
            token_file = None if token is not None else os.environ.get(TOKEN_FILE_VARIABLE) or None
        return cls(token, token_file)

    def given_as(self) -> CredentialOptions:
        """What gives another client the same."""
        if self._file is not None:
            return {"token": None, "token_file": self._file}
        return {"token": self._source or self._token}

    def headers(self) -> dict[str, str]:
        if self._source is not None:
            self._token = _checked(self._source().strip(), "token")
        return {} if self._token is None else {"Authorization": f"Bearer {self._token}"}

    def renewed(self, shown: Mapping[str, str]) -> bool:
        """Whether there is another token by now than was ``shown``, by a request that may not have been the only one
        under way; it counts from here on. Raises ``InvalidRequest``."""
        if self._file is not None:
            self._token = _read(self._file)
        return self.headers() != shown


def _read(file: Path) -> str:
    try:
        plain_stat(file)
        with file.open("rb") as opened:
            if (mode := os.fstat(opened.fileno()).st_mode & 0o777) & 0o077:
                raise InvalidRequest(
                    f"{file}: others may read or write the token (its mode is {mode:03o}); chmod 600 it", file=str(file)
                )
            text = opened.read(_MOST_BYTES).decode()
    except OSError as error:
        raise InvalidRequest(
            f"{file}: the token cannot be read: {error.strerror}; {TOKEN_VARIABLE} takes one that is in no file",
            file=str(file),
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file}: this is no token: it is not text", file=str(file)) from error
    return _checked(text.strip(), str(file))


def _checked(token: str, where: str) -> str:
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidRequest(f"{where}: this is no token, which is one word of ASCII", field="token")
    return token
