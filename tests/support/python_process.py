"""Interpreters that need not start: processes forked from one that has imported LSMQ already.

Most of what a command or a node costs in a test is that Python imports what it needs, and takes it apart at the end.
:class:`PythonProcess` is what ``python ARGUMENTS`` would be once that is done: a process with arguments, environment,
streams, signals and an exit code of its own. Its parent is the server here, which tells how it ended. What a test says
of the start itself, of imports or of memory it says of ``subprocess`` and ``sys.executable``, not of this.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any, NoReturn, cast
from unittest import mock

from lsmq_lab.local_cluster import process as of_clusters
from support.waiting import PATIENCE_S

#: What the server imports: the command with all its parts, the node, and the client's blocking face.
PRELOADED = (
    "lsmq.cli",
    "lsmq.sync",
    "lsmq_node.api.serve",
    "lsmq_node.cluster.running_member",
    "rich.table",
    "rich.progress",
)
_MOST_BYTES = 1 << 17

# The client's end


class PythonProcess:
    """``python ARGUMENTS``: arguments begin with ``-m MODULE``, ``-c PROGRAM`` or a script's path.

    ``stdin``, ``stdout`` and ``stderr`` are ``subprocess.PIPE``, ``subprocess.DEVNULL``, a descriptor, a file, or None
    for this process's own; ``env`` is all of its environment. Methods and attributes are those of
    :class:`subprocess.Popen`.
    """

    def __init__(
        self,
        arguments: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = subprocess.PIPE,
        stderr: int | IO[Any] | None = subprocess.PIPE,
        text: bool = False,
        start_new_session: bool = False,
    ) -> None:
        self.args = list(map(str, arguments))
        self.returncode: int | None = None
        self._waiting = threading.Lock()
        theirs: list[int] = []
        ours: list[IO[Any] | None] = []
        for number, stream in enumerate((stdin, stdout, stderr)):
            if stream == subprocess.PIPE:
                ends = os.pipe()
                theirs.append(ends[number > 0])
                mode = "r" if number else "w"
                ours.append(open(ends[number == 0], mode if text else f"{mode}b"))  # noqa: SIM115
            else:
                own = number if stream is None else stream if isinstance(stream, int) else stream.fileno()
                theirs.append(os.open(os.devnull, os.O_RDWR) if stream == subprocess.DEVNULL else os.dup(own))
                ours.append(None)
        self.stdin, self.stdout, self.stderr = ours
        self._status, told = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        order = {"arguments": self.args, "env": dict(os.environ if env is None else env), "cwd": str(Path.cwd())}
        order["session"] = start_new_session
        packed = json.dumps(order).encode()
        assert len(packed) < _MOST_BYTES, "that is too much for one packet"
        try:
            socket.send_fds(_server(), [packed], [*theirs, told.fileno()])
        finally:
            told.close()
            for fd in theirs:
                os.close(fd)
        self.pid = int(self._hear())

    def _hear(self) -> bytes:
        heard = self._status.recv(64)
        assert heard, "the server of processes has ended"
        return heard

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        with self._waiting:
            if self.returncode is None:
                heard = select.poll()  # not select, which takes no descriptor beyond 1023
                heard.register(self._status, select.POLLIN)
                if not heard.poll(None if timeout is None else 1000 * timeout):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                self.returncode = int(self._hear())
                self._status.close()
            return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def forget(self) -> int:
        """Its pid; from now on it is known by that alone."""
        self._status.close()
        return self.pid

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, input: bytes | str | None = None, timeout: float | None = None) -> tuple[Any, Any]:
        def write() -> None:
            assert self.stdin is not None
            with suppress(BrokenPipeError), self.stdin:
                if input:
                    self.stdin.write(input)

        def read(stream: IO[Any]) -> Any:
            with stream:
                return stream.read()

        with ThreadPoolExecutor(3) as pool:
            if self.stdin is not None:
                pool.submit(write)
            out, err = (None if stream is None else pool.submit(read, stream) for stream in (self.stdout, self.stderr))
            try:
                self.wait(timeout)
            except BaseException:
                self.kill()
                raise
            return out and out.result(), err and err.result()

    def __enter__(self) -> PythonProcess:
        return self

    def __exit__(self, *failure: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self.wait()


def run_python(
    *arguments: str | Path,
    input: Any = None,
    env: Mapping[str, str] | None = None,
    text: bool = False,
    timeout: float = PATIENCE_S,
) -> subprocess.CompletedProcess[Any]:
    """:func:`subprocess.run` of ``python ARGUMENTS``; without ``input`` its standard input is empty."""
    given = subprocess.DEVNULL if input is None else subprocess.PIPE
    process = PythonProcess(arguments, env=env, stdin=given, text=text)
    out, err = process.communicate(input, timeout)
    assert process.returncode is not None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@contextmanager
def forked_clusters() -> Iterator[None]:
    """Nodes of local clusters are such processes while this lasts, where they run the command as it is."""
    spawn = of_clusters._spawn

    def fork(command: Sequence[str], environment: Mapping[str, str], log: int, detached: bool) -> int:
        python, *arguments = command
        if python != sys.executable or arguments[:2] != ["-m", "lsmq"]:
            return spawn(command, environment, log, detached)
        node = PythonProcess(arguments, env=environment, stdout=log, stderr=log, start_new_session=detached)
        return node.forget()

    of_clusters._spawn = fork
    try:
        yield
    finally:
        of_clusters._spawn = spawn


class _Popen:
    """As :class:`subprocess.Popen` is called; a program in Python is forked."""

    def __class_getitem__(cls, item: Any) -> type[_Popen]:
        return cls

    def __new__(cls, command: Sequence[str | Path], **options: Any) -> Any:
        if _is_program(command):
            return PythonProcess(command[1:], **{"stdin": None, "stdout": None, "stderr": None, **options})
        return subprocess.Popen(command, **options)


def _run_or_fork(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[Any]:
    if _is_program(command) and options.pop("capture_output", False):
        options.pop("stdin", None)
        return run_python(*command[1:], **options)
    return subprocess.run(command, **options)


def _is_program(command: Sequence[str | Path]) -> bool:
    return command[0] == sys.executable and command[1] in ("-c", "-m")


@contextmanager
def forked_programs(*modules: ModuleType) -> Iterator[None]:
    """Programs in Python that these modules start by ``subprocess`` are such processes while this lasts."""
    forking = SimpleNamespace(**{**vars(subprocess), "Popen": _Popen, "run": _run_or_fork})
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(mock.patch.object(module, "subprocess", forking))
        yield


_starting = threading.Lock()
_running: tuple[int, socket.socket] | None = None


def _server() -> socket.socket:
    """The way to this process's server, which is started when it is first asked for and ends with this process."""
    global _running
    with _starting:
        if _running is None or _running[0] != os.getpid():
            control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            # Libraries that begin threads when they are imported would make each fork a fork of threads.
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, __file__, str(theirs.fileno())], env=environment, pass_fds=[theirs.fileno()]
                )
            _running = os.getpid(), control
            atexit.register(_end, os.getpid(), control, process)
        return _running[1]


def _end(owner: int, control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    if owner == os.getpid():
        control.close()
        process.wait()


# The server's end


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork a process for each order. Returns the order in such a process, and None in the server at its end."""
    told: dict[int, socket.socket] = {}
    wakes, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([control, wakes], [], [])
        if wakes in ready:
            os.read(wakes, 1 << 10)
            _tell_ends(told)
        if control not in ready:
            continue
        packed, fds, _, _ = socket.recv_fds(control, _MOST_BYTES, 4)
        if not packed:
            return None
        status = socket.socket(fileno=fds[3])
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, interrupt)
            for number, fd in enumerate(fds[:3]):
                os.dup2(fd, number)
                os.close(fd)
            for each in (control, status, *told.values()):
                each.close()
            os.close(wakes)
            os.close(wake)
            return cast(dict[str, Any], json.loads(packed))
        for fd in fds[:3]:
            os.close(fd)
        told[pid] = status
        _tell(status, pid)


def _tell_ends(told: dict[int, socket.socket]) -> None:
    while told:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with told.pop(pid) as channel:
            _tell(channel, os.waitstatus_to_exitcode(status))


def _tell(channel: socket.socket, number: int) -> None:
    with suppress(OSError):  # Nobody wants to know.
        channel.send(str(number).encode())


def _become(order: dict[str, Any]) -> NoReturn:
    """Go on as the interpreter that was ordered would: with its arguments, environment and streams."""
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    os.chdir(order["cwd"])
    if order["session"]:
        os.setsid()
    if "error" in order["env"].get("PYTHONWARNINGS", ""):
        warnings.simplefilter("error")
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    code: object = None
    try:
        _run(*order["arguments"])
    except SystemExit as ended:
        code = ended.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    # As an interpreter ends, but for taking apart all that was imported, which costs more than most commands do.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code or 0)


def _run(first: str, *rest: str) -> None:
    match first:
        case "-m":
            sys.argv = [*rest]
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        case "-c":
            sys.argv = ["-c", *rest[1:]]
            exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
        case script:
            sys.argv = [script, *rest]
            runpy.run_path(script, run_name="__main__")


def _preload() -> None:
    for name in PRELOADED:
        importlib.import_module(name)
    from lsmq.cli import root

    with root.make_context("lsmq", ["status"], resilient_parsing=True) as context:
        for name in root.list_commands(context):  # type: ignore[attr-defined]
            root.get_command(context, name)  # type: ignore[attr-defined]


if __name__ == "__main__":
    del sys.path[0]  # What lies beside this file is not to be imported by its bare name.
    _preload()
    gc.freeze()
    ordered = _serve(socket.socket(fileno=int(sys.argv[1])))
    if ordered is not None:
        _become(ordered)
