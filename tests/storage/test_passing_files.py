"""Directories for files that only pass through this machine."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lsmq_node.storage.passing_files import passing_directory

PROGRAM = """
import sys, time
from pathlib import Path
from lsmq_node.storage.passing_files import passing_directory
with passing_directory("test", Path(sys.argv[1])) as directory:
    (directory / "a file").write_bytes(b"x" * 1000)
    print("there", flush=True)
    time.sleep(600)
"""


def test_what_a_process_that_was_killed_left_is_removed_by_the_next(tmp_path: Path) -> None:
    other = tmp_path / "lsmq-other-spool-1"
    other.mkdir()
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"there\n"
        with passing_directory("test", tmp_path) as mine:
            [left] = set(tmp_path.iterdir()) - {mine, other}
            assert (left / "a file").stat().st_size == 1000, "it is in use"
        process.send_signal(signal.SIGKILL)
    with passing_directory("test", tmp_path) as mine:
        assert set(tmp_path.iterdir()) == {mine, other}
    assert list(tmp_path.iterdir()) == [other]


def test_what_several_of_one_process_use_stays(tmp_path: Path) -> None:
    with passing_directory("test", tmp_path) as first, passing_directory("test", tmp_path) as second:
        assert first != second and first.is_dir() and second.is_dir()


def test_what_it_may_not_look_at_stays(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "lsmq-test-spool-link").symlink_to(target)
    (tmp_path / "lsmq-test-spool-file").write_bytes(b"")
    with passing_directory("test", tmp_path):
        assert target.is_dir()
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "lsmq-test-spool-file",
        "lsmq-test-spool-link",
        "target",
    ]


def test_a_directory_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"), passing_directory("test", tmp_path / "nowhere"):
        pass
