"""Keeps the processes of a machine running: forks them, starts again what ends, passes signals on.

It is one thread without an event loop, so that it can fork at any time: what it has imported the processes need not
import again, and a process that died is back in a fraction of a second. It keeps no state but in memory, and serves
nothing; when it dies, whatever ends it, its processes see their sockets close, and stop as when they are told to.

A process that ends by itself before it ever listened, at the first start, cannot be started: then all are stopped, as a
node ends that cannot start. Later it is tried again for ever, at once and then after longer and longer pauses; also
where the system has nothing for another process (memory, descriptors, a limit of processes): the others go on.

Not supported: processes that are replaced one by one by a newer release. Stop the supervisor and start the new one; in
a cluster, machine by machine.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

import structlog

from lsmq import runtime
from lsmq_node.api import serve
from lsmq_node.config import NodeConfig

from .companion import MAX_LINE_BYTES, Companion
from .plan import PlannedProcess

_log = structlog.get_logger("lsmq.processes")

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
#: Who ran for so long is started again without a pause.
STEADY_S = 60.0
#: A process gets its own grace for stopping and this much more before it is killed.
STOP_MARGIN_S = 5.0
#: A process says each second that it runs; one that has not for so long hangs, and that is told.
SILENT_S = 5.0
_WAIT_S = 1.0


class SupervisedProcess:
    """A process, as its supervisor knows it."""

    def __init__(self, process: PlannedProcess) -> None:
        self.process = process
        self.pid: int | None = None
        self.channel: socket.socket | None = None
        self.unread = b""
        self.began = 0.0
        #: When it is to be started again; None while it runs, or is to run no more.
        self.due: float | None = 0.0
        self.pause_s = 0.0
        self.ends = 0
        self.was_up = False
        self.was_serving = False
        #: How it ended last, while it is not back; for the others.
        self.why: str | None = None
        #: When it said last that it runs; None before it listens.
        self.heard_at: float | None = None
        self.hangs = False

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def problem(self) -> str | None:
        if not self.hangs:
            return self.why
        return (
            f"process {self.pid} has not answered for {SILENT_S:g} s and more, and what it leads stands still: see "
            f"whether it is stopped, or waits for its disk. If it does not go on, `kill -9 {self.pid}`: it begins anew"
        )


class Supervisor:
    """Of one machine's processes. :meth:`run` returns when they have ended."""

    def __init__(self, config: NodeConfig, processes: Sequence[PlannedProcess]) -> None:
        self._config = config
        self._children = [SupervisedProcess(process) for process in processes]
        self._announced = False
        self._signalled: set[str] = set()
        self._stop_at: float | None = None  # When those that still run are killed; None while it is to go on.
        self._code = 0
        self._woken, self._wake = -1, -1
        #: Of the wake-up and of the channels. Kept: where all descriptors are used there is none for another, and
        #: poll(2) refuses more of them than a process may have by now.
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Until told to stop by SIGTERM, SIGINT or SIGHUP (unless that is ignored), as one process is."""
        os.umask(0o077)
        for name in ("lsmq_node.cluster.running_member", "lsmq_node.node"):
            importlib.import_module(name)  # What processes are forked with they need not import.
        gc.collect()
        gc.freeze()
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._woken, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._told_to_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        _log.info("supervising", pid=os.getpid(), processes=[child.name for child in self._children])
        while self._stop_at is None or any(child.pid is not None for child in self._children):
            self._start_due()
            began = runtime.monotonic()
            self._wait()
            self._reap()
            self._see_silence(held_up=runtime.monotonic() - began > 2 * _WAIT_S)
            self._see_to_stop()
        _log.info("stopped", code=self._code)
        return self._code

    def _told_to_stop(self, *_: object) -> None:
        if self._stop_at is None:
            self._stop_at = runtime.monotonic() + self._config.shutdown_grace_ms / 1000 + STOP_MARGIN_S

    # Starting

    def _start_due(self) -> None:
        now = runtime.monotonic()
        for child in self._children:
            if self._stop_at is None and child.due is not None and child.due <= now:
                self._start(child)

    def _start(self, child: SupervisedProcess) -> None:
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            self._cannot_start(child, error)
            return
        try:
            with warnings.catch_warnings():
                # Libraries may have threads that wait for nothing of ours; they see to forks themselves.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError as error:
            ours.close()
            theirs.close()
            self._cannot_start(child, error)
            return
        if pid == 0:
            ours.close()
            self._become(child, theirs)
        theirs.close()
        ours.setblocking(False)
        child.pid, child.channel, child.unread = pid, ours, b""
        self._selector.register(ours, selectors.EVENT_READ, child)
        child.began, child.due = runtime.monotonic(), None
        child.heard_at, child.hangs = None, False
        _log.info("process_started", name=child.name, process_id=pid, former_ends=child.ends)
        self._tell()

    def _cannot_start(self, child: SupervisedProcess, error: OSError) -> None:
        """The system has nothing for another process. Those that run go on; at the first start all are stopped."""
        why = error.strerror or str(error)
        if not child.was_up:
            _log.error("process_not_started", name=child.name, how=why)
            self._code = 1
            child.due = None
            self._told_to_stop()
            return
        _log.error("process_not_started", name=child.name, how=why, pause_s=child.pause_s)
        self._try_again(child, f"cannot be started ({why}), and is tried again")

    def _try_again(self, child: SupervisedProcess, why: str) -> None:
        """After its pause; the next one is longer. ``why`` is what the others are told."""
        child.due = runtime.monotonic() + child.pause_s
        child.pause_s = min(max(2 * child.pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
        child.why = why
        self._tell()

    def _become(self, child: SupervisedProcess, channel: socket.socket) -> None:
        """In the fork: the process, to its end."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            os.setpgid(0, 0)  # What a terminal sends is for the supervisor, which stops all in order.
            os.close(self._woken)
            os.close(self._wake)
            self._selector.close()
            for other in self._children:
                if other.channel is not None:
                    other.channel.close()
            runtime.random.seed()
            with contextlib.suppress(OSError):
                Path("/proc/self/comm").write_text(f"lsmq {child.name}"[:15])
            code = serve.run(child.process.config, Companion(child.name, channel))
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    # Seeing

    def _wait(self) -> None:
        """Until something happens, or is due."""
        now = runtime.monotonic()
        dues = [child.due for child in self._children if child.due is not None and self._stop_at is None]
        if self._stop_at is not None:
            dues.append(self._stop_at)
        left_s = max(0.0, min(dues, default=now + _WAIT_S) - now)
        for key, _ in self._selector.select(min(left_s, _WAIT_S)):
            if key.fd == self._woken:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
            else:
                self._hear(key.data)

    def _hear(self, child: SupervisedProcess) -> None:
        if child.channel is None:  # What another said had it let go just now.
            return
        try:
            heard = child.channel.recv(MAX_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        if not heard:  # It ends: how is told by its end.
            self._let_go(child)
            return
        *lines, child.unread = (child.unread + heard).split(b"\n")
        if not lines:
            return
        child.heard_at = runtime.monotonic()
        said = {json.loads(line)["is"] for line in lines}
        child.was_up = True
        if "serving" in said:
            child.was_serving, child.why = True, None
        if said != {"alive"}:
            self._tell()
        if not self._announced and self._is_ready():
            self._announced = True
            _log.info("ready", processes=len(self._children))
            serve.announce(self._children[0].process.config, self._config)

    def _is_ready(self) -> bool:
        """A member of a cluster is, as one process of it, when it listens: the others may not be there yet."""
        if self._config.cluster is not None:
            return all(child.was_up for child in self._children)
        return all(child.was_serving for child in self._children)

    def _tell(self) -> None:
        """Tell all how all are."""
        told = [
            {"name": child.name, "url": child.process.config.public_url, "pid": child.pid, "problem": child.problem}
            for child in self._children
        ]
        line = json.dumps({"processes": told}).encode() + b"\n"
        for child in self._children:
            if child.channel is None:
                continue
            try:
                heard = child.channel.send(line) == len(line)
            except OSError:  # It ends, or has not listened for long: what comes next tells all again.
                continue
            if not heard:  # What comes next would not be understood: it ends when it listens, and is started again.
                self._let_go(child)

    def _let_go(self, child: SupervisedProcess) -> None:
        """Hear it no more, nor tell it anything."""
        if child.channel is not None:
            self._selector.unregister(child.channel)
            child.channel.close()
            child.channel = None

    def _see_silence(self, *, held_up: bool) -> None:
        """Who hangs, and who does no more. ``held_up``: this process was, and nobody could be heard meanwhile."""
        now = runtime.monotonic()
        for child in self._children:
            if child.heard_at is None or self._stop_at is not None:
                continue
            if held_up:
                child.heard_at = now
            hangs = child.pid is not None and now - child.heard_at > SILENT_S
            if hangs == child.hangs:
                continue
            child.hangs = hangs
            if hangs:
                _log.error("process_hangs", name=child.name, process_id=child.pid, silent_s=SILENT_S)
            elif child.pid is not None:
                _log.info("process_answers_again", name=child.name, process_id=child.pid)
            self._tell()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in self._children:  # Others are orphans, where this is the first process of a container.
                if child.pid == pid:
                    self._ended(child, os.waitstatus_to_exitcode(status))

    def _ended(self, child: SupervisedProcess, code: int) -> None:
        how = f"signal {-code}" if code < 0 else f"code {code}"
        child.pid, child.heard_at, child.hangs = None, None, False
        self._let_go(child)
        if self._stop_at is not None:
            self._code = self._code or int(code != 0)
            _log.info("process_ended", name=child.name, how=how)
            return
        if not child.was_up and code > 0:
            _log.error("process_not_started", name=child.name, how=how)
            self._code = 1
            self._told_to_stop()
            return
        child.ends += 1
        if runtime.monotonic() - child.began > STEADY_S:
            child.pause_s = 0.0
        _log.error("process_ended", name=child.name, how=how, ends=child.ends, pause_s=child.pause_s)
        times = "for the first time" if child.ends == 1 else f"{child.ends} times by now"
        self._try_again(child, f"ended with {how}, {times}, and is started again")

    # Stopping

    def _see_to_stop(self) -> None:
        """Those that hold shards first; who only votes when they have ended."""
        if self._stop_at is None:
            return
        first = [child for child in self._children if not child.process.last and child.pid is not None]
        for child in first or self._children:
            if child.pid is not None and child.name not in self._signalled:
                self._signalled.add(child.name)
                os.kill(child.pid, signal.SIGTERM)
        if runtime.monotonic() >= self._stop_at:
            for child in self._children:
                if child.pid is not None:
                    _log.error("process_killed", name=child.name, why="it did not end in its time")
                    os.kill(child.pid, signal.SIGKILL)
            self._stop_at += STOP_MARGIN_S
