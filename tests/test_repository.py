"""House rules that no other tool checks: sizes, run bits, and nothing of any one machine in the files."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import warnings
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LARGE_LINES = 400
LARGEST_LINES = 600
LARGEST_FILE_BYTES = 512 * 1024
SCRIPTS = (
    "scripts/audit",
    "scripts/demo",
    "scripts/diagrams",
    "scripts/docs",
    "scripts/format",
    "scripts/lint",
    "scripts/lock",
    "scripts/setup",
    "scripts/simulate",
    "scripts/test",
    "compose/local-docker",
    "compose/local-images",
    ".ci/run",
)

#: Rooms of the product. In a room of ``MIRRORS`` a class blocks where its namesake of the room before awaits.
ROOMS = ("client", "coordinator", "lab", "node", "pipeline")
MIRRORS = {"client/lsmq/sync": "client/lsmq"}

# Patterns are put together here so that this file does not match itself.
MACHINE_PATH = re.compile(r"(?<![\w.~$}/])/(?:home|root|Users|work|workspace|mnt|private|opt/hosted\w*)/[\w.][\w.-]*")
REGISTRY = re.compile("|".join(("py" + r"pi\.org", "python" + "hosted", "index" + "-url", "trusted" + "-host")))
UNFINISHED = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b")
CONFLICT = re.compile(r"^(?:<{7}|>{7}|\|{7}) ", re.MULTILINE)
SECRET = re.compile("BEGIN [A-Z ]*PRIVATE" + " KEY")


@cache
def files() -> list[Path]:
    """All files that are in the repository or about to be: tracked, or untracked and not ignored."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git work tree")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


@cache
def texts() -> list[tuple[Path, str]]:
    """The text files among them."""
    found = []
    for path in files():
        content = path.read_bytes()
        if b"\0" not in content:
            found.append((path, content.decode()))
    return found


def matches(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()}"
        for path, text in texts()
        for match in pattern.finditer(text)
    ]


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param(MACHINE_PATH, id="paths of one machine"),
        pytest.param(REGISTRY, id="hosts or options of a package registry"),
        pytest.param(UNFINISHED, id="marks of unfinished work"),
        pytest.param(CONFLICT, id="marks of a merge conflict"),
        pytest.param(SECRET, id="private keys"),
    ],
)
def test_no_file_holds(pattern: re.Pattern[str]) -> None:
    assert matches(pattern) == []


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (MACHINE_PATH, "see " + "/home" + "/someone/notes"),
        (MACHINE_PATH, '"' + "/root" + '/.cache"'),
        (REGISTRY, "https://" + "py" + "pi.org/simple"),
        (UNFINISHED, "# TO" + "DO: later"),
        (CONFLICT, "<" * 7 + " ours"),
    ],
)
def test_the_patterns_find_what_they_are_for(pattern: re.Pattern[str], text: str) -> None:
    assert pattern.search(text)


@pytest.mark.parametrize("text", ["/v1/topics/home/x", "https://example.com/home/x", "~/work/x", "a/work/b"])
def test_the_patterns_leave_other_paths_alone(text: str) -> None:
    assert not MACHINE_PATH.search(text)


@pytest.mark.filterwarnings("default::UserWarning")
def test_modules_stay_small() -> None:
    lines = {
        str(path.relative_to(ROOT)): text.count("\n")
        for path, text in texts()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] != "tests"
    }
    assert lines
    for name, count in lines.items():
        if count > LARGE_LINES:
            warnings.warn_explicit(f"{count} lines; could it be two rooms?", LargeModule, name, count)
    assert {name: count for name, count in lines.items() if count > LARGEST_LINES} == {}


class LargeModule(UserWarning):
    """A module that is above the usual size; said, not failed."""


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_can_be_run_and_stop_at_the_first_error(name: str) -> None:
    script = ROOT / name
    assert os.access(script, os.X_OK)
    text = script.read_text()
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in text
    subprocess.run(["bash", "-n", script], check=True)


def test_no_file_is_larger_than_a_source_file_should_be() -> None:
    assert [str(path.relative_to(ROOT)) for path in files() if path.stat().st_size > LARGEST_FILE_BYTES] == []


def test_every_text_file_ends_with_a_newline() -> None:
    assert [str(path.relative_to(ROOT)) for path, text in texts() if text and not text.endswith("\n")] == []


def names_of_types(root: Path) -> dict[str, dict[str, str]]:
    """By public name, all that it means, and where: each class is a meaning, and each text of an alias.

    Left out are a mirror's classes that only mirror, and what users may write for an enum, a ``Literal``.
    """
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for path in sorted(path for room in ROOMS for path in (root / room).rglob("*.py")):
        module = path.relative_to(root).as_posix()
        for node in ast.parse(path.read_text()).body:
            match node:
                case ast.ClassDef(name=name) if not name.startswith("_"):
                    found[name][module] = module
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() | ast.BinOp()):
                    text = ast.unparse(node.value)
                    if re.match(r"[A-Z]\w*[a-z]", name) and not text.startswith("Literal["):
                        found[name].setdefault(text, module)
    for meanings in found.values():
        folders = {folder(module) for module in meanings.values()}
        for meaning in [at for at, module in meanings.items() if MIRRORS.get(folder(module)) in folders]:
            del meanings[meaning]
    return found


def folder(module: str) -> str:
    return module.rpartition("/")[0]


def ambiguous(found: dict[str, dict[str, str]]) -> dict[str, list[str]]:
    return {name: sorted(meanings.values()) for name, meanings in found.items() if len(meanings) > 1}


@pytest.mark.part(2)
def test_a_name_of_a_type_means_one_thing() -> None:
    found = names_of_types(ROOT)
    assert {"Client", "Consumer", "ShardStore", "RangePairs"} <= set(found)
    assert ambiguous(found) == {}


def test_a_name_that_means_two_things_is_found_and_a_mirror_is_not(tmp_path: Path) -> None:
    for module, text in {
        "client/lsmq/client.py": "class Client: ...\nAck = Literal['all']",
        "client/lsmq/sync/_client.py": "class Client: ...\nclass Group: ...",
        "node/lsmq_node/group.py": "class Group: ...\nclass _Own: ...\nclass Ack: ...\nPlace = tuple[int]",
        "node/lsmq_node/mask.py": "Mask = list[bool]",
        "node/lsmq_node/other.py": "class _Own: ...\nMask = list[bool]\nPlace = tuple[str]",
    }.items():
        (tmp_path / module).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / module).write_text(text)
    assert ambiguous(names_of_types(tmp_path)) == {
        "Group": ["client/lsmq/sync/_client.py", "node/lsmq_node/group.py"],
        "Place": ["node/lsmq_node/group.py", "node/lsmq_node/other.py"],
    }


def test_words_of_the_glossary_live_in_files_that_are_there() -> None:
    rows = [line for line in (ROOT / "docs/glossary.md").read_text().splitlines() if line.startswith("| ")]
    named = [path for row in rows for path in re.findall(r"`([\w/]+\.py)`", row.rsplit("|", 2)[1])]
    assert len(named) >= len(rows) - 4  # two tables, a head each
    assert [path for path in named if not (ROOT / path).is_file()] == []


#: Sleeps that tests do in real time, by file: the pace of a workload, or of a played peer. To wait for something there
#: is ``support.waiting``; to show that nothing happens, ``support.virtual_time`` and the world of ``scripts/simulate``.
#: The numbers only fall.
SLEEPS: dict[str, int] = {
    "tests/api/test_fetch_sessions.py": 1,
    "tests/api/test_named_queue_lives.py": 1,
    "tests/client/test_background_tasks.py": 2,
    "tests/client/test_consumer.py": 2,
    "tests/client/test_group_cluster.py": 1,
    "tests/client/test_group_handling.py": 3,
    "tests/client/test_groups.py": 1,
    "tests/client/test_keys_and_headers.py": 1,
    "tests/client/test_named_cluster.py": 1,
    "tests/client/test_order.py": 2,
    "tests/client/test_work_order.py": 2,
    "tests/client/test_work_queue.py": 3,
    "tests/client/test_work_queue_failures.py": 1,
    "tests/cluster/replica_group.py": 2,
    "tests/cluster/test_follower_reads.py": 1,
    "tests/cluster/test_links.py": 3,
    "tests/cluster/test_replica_storm.py": 4,
    "tests/compose/stack.py": 1,
    "tests/compose/test_compose.py": 1,
    "tests/coordinator/test_control.py": 2,
    "tests/coordinator/test_membership.py": 1,
    "tests/coordinator/test_raft_group.py": 1,
    "tests/pipeline/copy_driver.py": 1,
    "tests/pipeline/test_failures.py": 1,
    "tests/push/test_cluster.py": 2,
    "tests/push/test_consumer.py": 4,
    "tests/support/dying.py": 1,
    "tests/support/fault_proxy.py": 1,
    "tests/support/group_member.py": 2,
    "tests/support/group_topic.py": 1,
    "tests/support/raft_group.py": 1,
    "tests/support/waiting.py": 2,
    "tests/support/work_process.py": 1,
    "tests/transactions/test_cluster.py": 1,
    "tests/transactions/test_steps.py": 1,
}


def decorators(node: ast.stmt) -> list[ast.expr]:
    return getattr(node, "decorator_list", [])


def sleeps(text: str) -> int:
    """How many places of a test's file sleep. ``sleep(0)`` is a turn of the event loop, and no time."""
    tree = ast.parse(text if "sleep" in text else "")
    virtual = re.search(r"^pytestmark = pytest.mark.virtual_time$|run_in_virtual_time", text, re.MULTILINE)
    tree.body = [each for each in tree.body if "pytest.mark.virtual_time" not in map(ast.unparse, decorators(each))]
    return sum(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "sleep"
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in (("time",) if virtual else ("asyncio", "time"))
        and not (len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)
        for node in ast.walk(tree)
    )


@pytest.mark.part(2)
def test_tests_wait_for_conditions_and_do_not_sleep() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): sleeps(path.read_text())
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path.parent.name not in ("simulation", "semantics")  # They run in the world, on its time.
    }
    found = {name: count for name, count in found.items() if count}
    more = {name: count for name, count in found.items() if count > SLEEPS.get(name, 0)}
    assert not more, "wait for a condition (support.waiting), or let virtual time pass (support.virtual_time)"
    assert found == SLEEPS, "there are fewer by now: lower the numbers in SLEEPS"


def test_sleeps_are_found_and_turns_of_the_loop_are_not() -> None:
    slept = "await asyncio.sleep(0.1)\ntime.sleep(pause)\nawait asyncio.sleep(0)\nruntime.sleep(3)\n"
    assert sleeps(slept) == 2
    assert sleeps(f"pytestmark = pytest.mark.virtual_time\n{slept}") == 1
    one = "async def test_one() -> None:\n    await asyncio.sleep(9)\n"
    assert [sleeps(one), sleeps(f"@pytest.mark.virtual_time\n{one}")] == [1, 0]
