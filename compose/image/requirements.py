"""Print what pyproject.toml, read from the working directory, asks for: the package's needs and those of the extras,
but for what these name of its own extras.

With ``--build`` what builds the wheel instead, and what of its needs comes as source alone. Needs Python 3.11 and
nothing else.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

#: PySyncObj is published as source, to be built by this.
SOURCE_BUILDS = ["setuptools>=77"]

document = tomllib.loads(Path("pyproject.toml").read_text())
if sys.argv[1:] == ["--build"]:
    wanted = [*document["build-system"]["requires"], *SOURCE_BUILDS]
else:
    extras = document["project"]["optional-dependencies"]
    wanted = [*document["project"]["dependencies"], *(line for extra in sys.argv[1:] for line in extras[extra])]
    wanted = [line for line in wanted if not line.startswith(f"{document['project']['name']}[")]
print("\n".join(wanted))
