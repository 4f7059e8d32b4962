"""Code on the pages runs: pieces of Python among what they take for granted, whole programs and commands as they stand.

A block that is not run says why, on the page. Commands of all pages are compared with those there are in
``tests/client/test_documented_commands.py``.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

import lsmq
from documents.blocks import ALL, Block
from documents.given import ENDING, given
from lsmq_node.cluster_config import ClusterConfig
from lsmq_node.config import NodeConfig
from support.node_process import NodeProcess
from support.ports import free_ports
from support.pytest_plugin import plugin_options
from support.waiting import PATIENCE_S

#: Pages that a newcomer follows from top to bottom, in a shell.
FOLLOWED = ("README.md", "docs/index.md", "docs/tutorial.md")
PYTHON = [block for block in ALL if block.language == "python" and block.why is None]
PIECES = [block for block in PYTHON if "def test_" not in block.code and "@pytest" not in block.code and not block.file]
_LIMIT_S = 2 * PATIENCE_S
#: What a person sees to have happened before he goes on: commands that succeed then.
AWAITED = {"python kitchen.py &": "lsmq consume trays --queue table.7 && lsmq dlq list dishes --group kitchen"}


def test_blocks_are_found_and_few_are_not_run() -> None:
    not_run = [block for block in ALL if block.why is not None]
    assert len(PYTHON) > 35
    assert len(not_run) < 15
    assert all(len(block.why or "") > 10 for block in not_run), "the reason is told"


@pytest.mark.part(2)
@pytest.mark.parametrize("block", PIECES, ids=lambda block: block.place)
def test_a_piece_of_python_runs(
    block: Block, make_node: Callable[..., NodeProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node().start()
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("lsmq_token")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("LSMQ_URL", node.url)
    for name, kind in ENDING.items():
        monkeypatch.setattr(lsmq, name, kind)
    code = block.code.replace("http://127.0.0.1:7600", node.url).replace("/run/secrets/lsmq-token", str(token))
    if block.page == "docs/queue-store.md" and "repair" in code:
        from lsmq_node.storage import QueueStore

        with QueueStore("./queues") as store:
            store.put("alice", b"hello")
    compiled = compile("\n" * block.line + code, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def run() -> None:
        async with asyncio.timeout(_LIMIT_S), given(node.url, block.page, block.number, code) as names:
            if compiled.co_flags & inspect.CO_COROUTINE:
                await eval(compiled, names)
            else:
                await asyncio.to_thread(exec, compiled, names)

    asyncio.run(run())


@pytest.mark.part(2)
def test_tests_on_the_pages_pass(tmp_path: Path) -> None:
    blocks = [block for block in PYTHON if "def test_" in block.code or "@pytest" in block.code]
    assert len(blocks) >= 3
    for block in blocks:
        name = f"test_{block.number}.py" if "def test_" in block.code else "conftest.py"
        (tmp_path / name).write_text(block.code)
    options = ["-q", "-W", "error", *plugin_options(), "--strict-markers", "--rootdir", tmp_path]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, tmp_path], capture_output=True, text=True, timeout=_LIMIT_S
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.part(2)
@pytest.mark.parametrize("page", FOLLOWED)
def test_a_page_is_followed_from_top_to_bottom(page: str, tmp_path: Path) -> None:
    blocks = [block for block in ALL if block.page == page and block.why is None]
    lines = ["set -eu -o pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"]
    port = free_ports(1)[0]
    for block in blocks:
        if block.file is not None:
            (tmp_path / block.file).write_text(block.code)
        elif block.language == "sh":
            lines.append(block.code)
    script = "\n".join(lines).replace("lsmq serve --data ./data", f"lsmq serve --data ./data --port {port}")
    script = script.replace("127.0.0.1:7600", f"127.0.0.1:{port}")
    assert script.count("lsmq ") > 3
    for command, done in AWAITED.items():
        script = script.replace(command, f"{command}\nuntil {done}; do sleep 0.1; done")
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name, arguments in (("lsmq", "-m lsmq"), ("python", "")):
        (binaries / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        (binaries / name).chmod(0o755)
    path = f"{binaries}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "LSMQ_URL": f"http://127.0.0.1:{port}", "PYTHONWARNINGS": "error"}
    bash = shutil.which("bash")
    assert bash is not None
    log = tmp_path / "log"
    with log.open("w") as told:  # A pipe would be held open by what runs in the background.
        ran = subprocess.run(
            [bash, "-c", script], cwd=tmp_path, env=environment, stdout=told, stderr=told, timeout=_LIMIT_S
        )
    assert ran.returncode == 0, log.read_text()


@pytest.mark.parametrize("block", [b for b in ALL if b.language == "toml"], ids=lambda block: block.place)
def test_settings_on_the_pages_are_settings(block: Block) -> None:
    found = tomllib.loads(block.code)
    cluster = found.pop("cluster", {})
    assert set(found) <= {field.name for field in fields(NodeConfig)}
    assert set(cluster) <= {field.name for field in fields(ClusterConfig)}


@pytest.mark.parametrize("block", [b for b in ALL if b.language in ("json", "yaml")], ids=lambda block: block.place)
def test_json_and_yaml_on_the_pages_can_be_read(block: Block) -> None:
    json.loads(block.code) if block.language == "json" else list(yaml.safe_load_all(block.code))
