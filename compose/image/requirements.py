"""Print what pyproject.toml, read from the working directory, asks for: the package's needs and those of the extras.

With ``--build`` what building the wheel takes as well. Needs Python 3.11 and nothing else.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

document = tomllib.loads(Path("pyproject.toml").read_text())
wanted = list(document["project"]["dependencies"])
for argument in sys.argv[1:]:
    if argument == "--build":
        wanted += document["build-system"]["requires"]
    else:
        wanted += document["project"]["optional-dependencies"][argument]
print("\n".join(wanted))
