"""What Maven Central has: jars, brought once into a cache and checked every time."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .report import BenchFailed, TellProgress
from .server_processes import cache_directory

_TIMEOUT_S = 1800
_PROJECT = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>bench</groupId><artifactId>bench</artifactId><version>1</version><dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = (
    "<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>{exclusions}</dependency>"
)
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


@dataclass(frozen=True, slots=True)
class Jars:
    """``artifacts`` as (group, artifact, version), with what they depend on unless ``alone``. ``digest`` is the SHA-256
    over the names and the SHA-256 of all jars; empty where other releases may stand in, and Maven's own check is all.
    """

    name: str
    artifacts: tuple[tuple[str, str, str], ...]
    digest: str = ""
    alone: bool = False

    def lacks(self) -> str | None:
        """What is missing to bring or run them."""
        if shutil.which("java") is None:
            return f"java is not on PATH, so {self.name} cannot run: apt-get install default-jre-headless"
        if not any(self.place().glob("*.jar")) and shutil.which("mvn") is None:
            return f"mvn is not on PATH, so {self.name} cannot be brought: apt-get install maven"
        return None

    def place(self) -> Path:
        return cache_directory(self.name)

    def bring(self, progress: TellProgress = lambda line: None, place: Path | None = None) -> Path:
        """The directory with the jars. Raises :class:`BenchFailed` where Maven fails, or brings others."""
        place = place or self.place()
        if not any(place.glob("*.jar")):
            if missing := self.lacks():
                raise BenchFailed(missing)
            progress(f"bringing {self.name} with Maven into {place}")
            self._fetch(place)
        if self.digest and (found := digest_of(place)) != self.digest:
            raise BenchFailed(
                f"the jars of {self.name} in {place} have the digest {found}, not {self.digest}; remove the directory"
            )
        return place

    def _fetch(self, place: Path) -> None:
        fresh = place.with_name(f"{place.name}.part")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        exclusions = _ALONE if self.alone else ""
        dependencies = "".join(_DEPENDENCY.format(*artifact, exclusions=exclusions) for artifact in self.artifacts)
        (fresh / "pom.xml").write_text(_PROJECT.format(dependencies=dependencies))
        # Strict: a jar that is not what the repository says it is ends it.
        command = ["mvn", "-q", "-B", "-C", "dependency:copy-dependencies", f"-DoutputDirectory={fresh}"]
        done = subprocess.run(command, cwd=fresh, capture_output=True, text=True, timeout=_TIMEOUT_S)
        if done.returncode != 0:
            lines = [line for line in done.stdout.splitlines() if "ERROR" in line]
            raise BenchFailed(f"Maven could not bring {self.name}: {(lines or ['no reason given'])[0][:400]}")
        shutil.rmtree(place, ignore_errors=True)
        fresh.rename(place)


def digest_of(place: Path) -> str:
    """The SHA-256 over the names and SHA-256 of a directory's jars, in order of their names."""
    whole = hashlib.sha256()
    for jar in sorted(place.glob("*.jar"), key=lambda each: each.name):
        with jar.open("rb") as content:
            whole.update(f"{jar.name} {hashlib.file_digest(content, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()


def java(directory: Path, main: Sequence[str], *, heap: str = "1g", options: Sequence[str] = ()) -> list[str]:
    """The command that runs a class of a directory's jars."""
    return ["java", f"-Xmx{heap}", *options, "-cp", f"{directory}/*", *main]
