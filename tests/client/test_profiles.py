"""``lsmq profile``, and commands that take what a profile has."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lsmq.cli import root
from lsmq_node.config import FOREIGN_VARIABLES
from support.node_process import NodeProcess
from support.python_process import run_python
from support.waiting import eventually

NOWHERE = "http://127.0.0.1:9"
Run = Callable[..., Any]


@pytest.fixture
def lsmq(tmp_path: Path) -> Run:
    """Run ``lsmq`` in an environment that has the configuration of nobody."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith("LSMQ_")}

    def run(*arguments: str | Path, code: int = 0, **env: str) -> Any:
        ran = run_python(
            "-m", "lsmq", *arguments, env={**clean, "XDG_CONFIG_HOME": str(tmp_path / "config"), "NO_COLOR": "1", **env}
        )
        assert ran.returncode == code, (ran.returncode, ran.stdout, ran.stderr)
        return ran

    return run


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    return tmp_path / "config" / "lsmq" / "profiles"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that asks who somebody is."""
    node = NodeProcess(tmp_path_factory.mktemp("guarded") / "data", auth="token").start()
    try:
        eventually((node.data / "admin.token").exists, "the first token is written")
        yield node
    finally:
        node.stop()


def pid(ran: Any) -> int:
    found: int = json.loads(ran.stdout)["pid"]
    return found


def test_a_profile_says_where_whatever_the_environment_says(lsmq: Run, shared_node: NodeProcess) -> None:
    lsmq("profile", "add", "here", "--url", shared_node.url)
    lsmq("profile", "add", "nowhere", "--url", NOWHERE)
    assert pid(lsmq("status", "--json", "--profile", "here", LSMQ_URL=NOWHERE)) == shared_node.pid
    assert pid(lsmq("status", "--json", LSMQ_PROFILE="here", LSMQ_URL=NOWHERE)) == shared_node.pid
    assert pid(lsmq("status", "--json", "--profile", "here", LSMQ_PROFILE="nowhere")) == shared_node.pid
    assert pid(lsmq("status", "--json", "--profile", "here", LSMQ_ZOOKEEPER="127.0.0.1:9")) == shared_node.pid
    lsmq("status", "--timeout", "100ms", LSMQ_PROFILE="nowhere", code=1)
    # Whatever the order in which they stand.
    assert pid(lsmq("status", "--timeout", "9s", "--json", "--profile", "here")) == shared_node.pid


def test_a_url_that_is_given_leaves_the_profile_out(lsmq: Run, shared_node: NodeProcess) -> None:
    lsmq("profile", "add", "nowhere", "--url", NOWHERE)
    assert pid(lsmq("status", "--json", "--url", shared_node.url, LSMQ_PROFILE="nowhere")) == shared_node.pid
    for where in (("--url", shared_node.url), ("--zookeeper", "127.0.0.1:9")):
        refused = lsmq("status", "--profile", "nowhere", *where, code=2)
        assert f"--profile and {where[0]} both say where".encode() in refused.stderr


def test_the_token_of_a_profile_is_shown_to_its_cluster_alone(lsmq: Run, guarded: NodeProcess, tmp_path: Path) -> None:
    token = guarded.data / "admin.token"
    lsmq("profile", "add", "mine", "--url", guarded.url, "--token-file", token)
    lsmq("profile", "add", "bare", "--url", guarded.url)
    assert b"admin" in lsmq("whoami", "--profile", "mine").stdout
    assert b"admin" in lsmq("whoami", LSMQ_PROFILE="mine", LSMQ_TOKEN="another").stdout
    assert b"admin" in lsmq("whoami", "--profile", "bare", "--token-file", token).stdout
    # Neither is the environment's to the cluster of a profile, nor a profile's to another cluster.
    own = {"LSMQ_TOKEN": token.read_text().strip()}
    assert b"admin" in lsmq("whoami", "--url", guarded.url, **own).stdout
    assert b"unauthenticated" in lsmq("whoami", "--profile", "bare", code=1, **own).stderr
    assert b"unauthenticated" in lsmq("whoami", "--url", guarded.url, code=1, LSMQ_PROFILE="mine").stderr
    another = tmp_path / "another.token"
    another.write_text("another")
    another.chmod(0o600)
    refused = lsmq("whoami", "--profile", "mine", "--token-file", another, code=1)
    assert b"unauthenticated" in refused.stderr


def test_who_may_monitor_may_watch(lsmq: Run, guarded: NodeProcess, tmp_path: Path) -> None:
    lsmq("profile", "add", "mine", "--url", guarded.url, "--token-file", guarded.data / "admin.token")
    for name, roles in (("watcher", ("--role", "monitor")), ("nobody", ())):
        file = tmp_path / f"{name}.token"
        lsmq("token", "create", name, *roles, "--out", file, "--profile", "mine")
        lsmq("profile", "add", name, "--url", guarded.url, "--token-file", file)
    look = json.loads(lsmq("top", "--once", "--json", "--profile", "watcher").stdout)
    assert look["well"] and [node["node"] for node in look["nodes"]] == ["local"]
    assert lsmq("status", "--profile", "watcher").stdout.startswith(b"well: 1 node")
    for command in ("top", "status"):
        assert b"error: forbidden: " in lsmq(command, "--profile", "nobody", code=1).stderr


def test_profiles_are_files_of_the_users_alone_without_tokens(lsmq: Run, guarded: NodeProcess, profiles: Path) -> None:
    token = guarded.data / "admin.token"
    relative = os.path.relpath(token)
    lsmq("profile", "add", "prod", "--url", f"{guarded.url},other:7600", "--token-file", relative)
    file = profiles / "prod.json"
    assert (file.stat().st_mode & 0o777, profiles.stat().st_mode & 0o777) == (0o600, 0o700)
    kept = json.loads(file.read_text())
    assert kept["url"] == f"{guarded.url},http://other:7600"
    assert Path(kept["token_file"]).is_absolute() and Path(kept["token_file"]).samefile(token)
    assert token.read_text().strip() not in file.read_text()
    assert [each.name for each in profiles.iterdir()] == ["prod.json"], "nothing else is left"
    for mode in (0o640, 0o602):
        file.chmod(mode)
        assert b"chmod 600" in lsmq("status", "--profile", "prod", code=2).stderr


def test_profiles_are_listed_replaced_and_removed(lsmq: Run, tmp_path: Path) -> None:
    assert json.loads(lsmq("profile", "list", "--json").stdout) == []
    lsmq("profile", "list")
    lsmq("profile", "add", "a", "--url", "one:7600")
    lsmq("profile", "add", "b", "--zookeeper", "zoo:2181", "--cluster", "c")
    listed = json.loads(lsmq("profile", "list", "--json", LSMQ_PROFILE="b").stdout)
    assert listed == [
        {"name": "a", "url": "http://one:7600", "chosen": False},
        {"name": "b", "zookeeper": "zoo:2181", "cluster": "c", "chosen": True},
    ]
    shown = lsmq("profile", "list", LSMQ_PROFILE="b").stdout
    assert b"http://one:7600" in shown and b"ZooKeeper zoo:2181" in shown
    assert b"--replace" in lsmq("profile", "add", "a", "--url", "two:7600", code=2).stderr
    lsmq("profile", "add", "a", "--url", "two:7600", "--replace")
    assert json.loads(lsmq("profile", "list", "--json").stdout)[0]["url"] == "http://two:7600"
    lsmq("profile", "remove", "a")
    assert [each["name"] for each in json.loads(lsmq("profile", "list", "--json").stdout)] == ["b"]
    for command in (("profile", "remove", "a"), ("status", "--profile", "a")):
        assert b"there is no profile 'a'; there are: b" in lsmq(*command, code=2).stderr
    assert b"there is no profile 'z'" in lsmq("topic", "list", code=2, LSMQ_PROFILE="z").stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("../x", "--url", "h:1"), "no name of a profile"),
        (("-", "--url", "h:1"), "no name of a profile"),
        (("x" * 65, "--url", "h:1"), "no name of a profile"),
        (("x",), "--url, or --zookeeper"),
        (("x", "--url", "h:1", "--zookeeper", "z:1"), "--url, or --zookeeper"),
        (("x", "--url", "h:1", "--cluster", "c"), "--zookeeper as well"),
        (("x", "--url", "ftp://h"), "not the URL of a node"),
        (("x", "--url", ","), "names no node"),
        (("x", "--url", "http://me:secret@h:1"), "--token-file"),
        (("x", "--url", "h:1", "--token-file", "/no/such/file"), "does not exist"),
    ],
)
def test_what_is_no_profile_is_refused(lsmq: Run, profiles: Path, arguments: tuple[str, ...], complaint: str) -> None:
    refused = lsmq("profile", "add", *arguments, code=2).stderr.decode()
    assert complaint in " ".join(refused.split())
    assert not profiles.exists()


@pytest.mark.parametrize("text", ["", "[]", '{"url": 1}', '{"url": "h:1", "token": "secret"}', "\udcff"])
def test_a_file_that_is_no_profile_is_named_and_can_be_removed(lsmq: Run, profiles: Path, text: str) -> None:
    profiles.mkdir(parents=True)
    file = profiles / "x.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    file.chmod(0o600)
    refused = lsmq("status", "--profile", "x", code=2).stderr.decode()
    assert f"{file} is no profile" in refused and "secret" not in refused
    lsmq("profile", "remove", "x")
    assert not file.exists()


def test_a_command_leaves_the_environment_as_it_was(
    shared_node: NodeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("LSMQ_URL", NOWHERE)
    monkeypatch.setenv("LSMQ_TOKEN", "t")
    assert CliRunner().invoke(root, ["profile", "add", "p", "--url", shared_node.url]).exit_code == 0
    before = dict(os.environ)
    assert CliRunner().invoke(root, ["topic", "list", "--profile", "p"]).exit_code == 0
    assert dict(os.environ) == before


def test_a_node_starts_where_a_profile_is_chosen() -> None:
    assert "LSMQ_PROFILE" in FOREIGN_VARIABLES
