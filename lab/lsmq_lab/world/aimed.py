"""The scenes: each the shortest way to where one rule of replication is all that holds.

``scripts/simulate --scenes`` plays them. Most deliberate bugs of replication are found in one.
"""

from __future__ import annotations

from collections.abc import Callable

from lsmq_node.replication import ReplicaRole
from lsmq_node.replication import actions as act
from lsmq_node.replication.messages import Hello, Progress

from .medium import DirectoryNode
from .scenes import Scene, Script

_WAL, _RECORD = "/wal/", "/REPLICA"


def a_slow_follower(scene: Scene) -> Script:
    """It is written and not synced where a leader might count on it."""
    scene.one.disk.slow = _WAL, 0.3
    scene.write(3)
    yield scene.written


def an_outage(scene: Scene) -> Script:
    """All lose their power at once, right after an acknowledgement."""
    rises = scene.rises()
    scene.write()
    yield rises
    scene.power_cut()
    for node in scene.cluster.nodes:
        node.start()
    yield scene.serves(*scene.cluster.nodes)


def a_silent_link(scene: Scene) -> Script:
    """A leader does not reach a follower, and proposes it out of the in-sync set."""
    scene.silence(scene.leader, scene.other)
    scene.write()
    yield scene.written


def a_newcomer(scene: Scene) -> Script:
    """A follower is taken into the in-sync set, which its leader is told late, and lacks what comes next."""
    scene.isolate(scene.other)
    yield scene.left(scene.other)
    scene.hear()
    yield scene.did(scene.leader, act.ProposeInSync, lambda action: len(action.members) == 3)
    scene.blind(scene.leader)
    scene.silence(scene.leader, scene.other)
    yield lambda: scene.listed(scene.other)
    scene.write()
    yield scene.after(0.2)


def a_leader_restarts(scene: Scene) -> Script:
    """It alone can be elected, as another life of itself."""
    scene.isolate(scene.other)
    yield scene.left(scene.other)
    scene.hear()
    scene.one.kill()
    scene.leader.kill()
    scene.leader.start()
    yield scene.acts(scene.leader)
    yield scene.after(0.5)


def an_answer_lost(scene: Scene) -> Script:
    """A write is done, and the connection breaks before its writer is told."""
    rises = scene.rises()
    scene.write()
    yield rises
    scene.hang_up(scene.leader)
    yield scene.written


def a_member_less(scene: Scene) -> Script:
    """Of two members of the in-sync set one comes back with nothing: the other has to wait for it."""
    scene.other.kill()
    yield scene.left(scene.other)
    scene.one.kill()
    scene.shard_is_lost(scene.one)
    scene.one.start()
    yield scene.left(scene.one)
    scene.silence(scene.leader, scene.one)
    scene.write()
    yield scene.after(0.1)


def an_unheard_tail(scene: Scene) -> Script:
    """A leader dies with bytes that nobody has; others are written in their place."""
    scene.silence(scene.leader, scene.one, scene.other)
    more = scene.longer(scene.leader)
    scene.write(3)
    yield more
    scene.leader.kill()
    yield scene.serves(scene.one, scene.other)
    scene.write(10)
    yield scene.written
    scene.leader.start()


def two_quick_failovers(scene: Scene) -> Script:
    """A leader has a tail that nobody has, the next one dies with an EPOCH entry alone, the third has the tail."""
    scene.silence(scene.leader, scene.one, scene.other)
    more = scene.longer(scene.leader)
    scene.write(3)
    yield more
    assert scene.leader.process is not None
    scene.leader.process.pause()
    first, second = scene.did(scene.one, act.BeginEpoch), scene.did(scene.other, act.BeginEpoch)
    yield lambda: first() or second()
    elected, last = (scene.one, scene.other) if first() else (scene.other, scene.one)
    for other in (last, scene.leader):
        scene.world.network.cut(elected.host, other.host)
    yield scene.longer(elected)
    scene.leader.process.resume()
    yield scene.after(0.3)  # Its log is heard of again: it is the longer one.
    elected.kill()
    for other in (last, scene.leader):  # What it had sent comes no more.
        scene.world.network.reset(elected.host, other.host)
    scene.hear()
    yield scene.serves(scene.leader, last)
    scene.write(5)
    yield scene.written
    elected.start()


def a_lower_high_watermark(scene: Scene) -> Script:
    """A new leader knows a lower high watermark than the old one acknowledged by; a follower that is not in the in-sync
    set has everything up to there, and no more."""
    scene.isolate(scene.other)
    yield scene.left(scene.other)
    scene.hear()
    yield scene.holds(scene.other, scene.end(scene.leader))
    yield scene.after(0.1)
    scene.silence(scene.leader, scene.other)
    rises = scene.rises()
    scene.write()
    yield rises
    scene.leader.kill()
    scene.other.disk.slow = _WAL, 0.5
    yield scene.serves(scene.one, scene.other)


def a_tail_to_lend(scene: Scene) -> Script:
    """Who must lead lacks what a replica beside the in-sync set has."""
    scene.isolate(scene.other)
    yield scene.left(scene.other)
    scene.hear()
    yield scene.holds(scene.other, scene.end(scene.leader))
    scene.silence(scene.leader, scene.one)
    longer = scene.longer(scene.other)
    scene.write()
    yield longer
    scene.leader.kill()
    yield scene.serves(scene.one, scene.other)


def control_that_forgot_who_left(scene: Scene) -> Script:
    """The control plane goes back to when a replica was in sync that lacks what came since, and elects it."""
    copies = scene.copies()
    scene.isolate(scene.other)
    yield scene.left(scene.other)
    scene.write(5)
    yield scene.written
    scene.power_cut()
    scene.hear()
    scene.control_goes_back(copies)
    scene.one.disk.slow = _RECORD, 1.0  # It registers late.
    scene.other.start()
    scene.one.start()

    def elected() -> bool:
        core = scene.core(scene.other)
        return core is not None and core.role in (ReplicaRole.TAKING_OVER, ReplicaRole.LEADING)

    yield elected
    scene.one.disk.slow = None
    yield scene.acts(scene.one)


def an_epoch_that_control_forgot(scene: Scene) -> Script:
    """An epoch was promised and begun; the power goes, and the control plane comes back from before it."""
    copies = scene.copies()
    scene.one.disk.slow = scene.other.disk.slow = _RECORD, 0.3
    scene.leader.kill()
    first, second = scene.did(scene.one, act.BeginEpoch), scene.did(scene.other, act.BeginEpoch)
    yield lambda: first() or second()
    began, promised = (scene.one, scene.other) if first() else (scene.other, scene.one)
    scene.power_cut()
    scene.one.disk.slow = scene.other.disk.slow = None
    scene.control_goes_back(copies)
    scene.leader.start()
    promised.start()
    yield scene.serves(scene.leader, promised)
    began.start()


def an_epoch_begun_twice(scene: Scene) -> Script:
    """A cluster is set back to copies, but for one replica, which has an epoch as it was begun before."""
    scene.one.kill()
    yield scene.left(scene.one)
    yield scene.after(0.3)
    copies = scene.copies()
    scene.leader.kill()
    scene.one.start()
    end = scene.committed
    yield scene.did(scene.one, Progress, lambda message: message.durable_lsn > end)
    scene.power_cut()
    scene.control_goes_back(copies)
    for node in (scene.leader, scene.other):
        node.disk.become(copies[node.id])
    scene.protocol.control_went_back(epochs=True)
    scene.leader.start()
    scene.other.start()
    yield scene.serves(scene.leader, scene.other)
    scene.write(3)
    yield scene.written
    scene.one.start()
    yield scene.acts(scene.one)
    leads = scene.leader if scene.serves(scene.leader)() else scene.other
    leads.kill()
    yield scene.serves(*(node for node in scene.cluster.nodes if node is not leads))


def a_copy_of_the_same_life(scene: Scene) -> Script:
    """A disk goes back to a copy that knows all its starts, and not the log that others know it had."""
    scene.other.kill()
    yield scene.left(scene.other)
    copied = scene.one.disk.copy()
    scene.write(3)
    yield scene.written
    yield scene.after(0.3)
    scene.one.kill()
    scene.shard_goes_back(scene.one, copied)
    scene.one.start()
    yield scene.acts(scene.one)


def a_copy_of_a_former_life(scene: Scene) -> Script:
    """It goes back to before a start, at once after an acknowledgement of which nobody could tell."""
    copied = scene.one.disk.copy()
    scene.one.kill()
    scene.one.start()
    yield scene.acts(scene.one)
    yield scene.settled
    yield from _comes_back_with_less(scene, copied)


def a_copy_of_a_start(scene: Scene) -> Script:
    """It goes back to between a start and the knowledge that it was registered."""
    scene.one.kill()
    scene.one.start()
    yield scene.did(scene.one, act.RegisterStart, lambda action: action.registered < action.starts[-1].number)
    copied = scene.one.disk.copy()
    yield scene.acts(scene.one)
    yield scene.settled
    yield from _comes_back_with_less(scene, copied)


def _comes_back_with_less(scene: Scene, copied: DirectoryNode) -> Script:
    """The disk of ``one`` becomes its copy, at once after an acknowledgement; its leader stands still meanwhile."""
    rises = scene.rises()
    scene.write()
    yield rises
    assert scene.leader.process is not None
    scene.leader.process.pause()
    scene.shard_goes_back(scene.one, copied)
    scene.one.start()
    yield scene.acts(scene.one)


def a_short_log(scene: Scene) -> Script:
    """A log loses what was durable when its replica started, and of which nobody else could tell."""
    scene.isolate(scene.other)
    yield scene.left(scene.other)
    scene.hear()
    yield scene.holds(scene.other, scene.end(scene.leader))
    end = scene.committed
    rises = scene.rises()
    scene.write()
    yield rises
    assert scene.leader.process is not None
    scene.leader.process.pause()
    scene.one.kill()
    scene.one.start()
    yield scene.acts(scene.one)
    scene.one.kill()
    scene.lose_tail(scene.one, end)
    scene.one.start()
    yield scene.acts(scene.one)


def a_lost_disk(scene: Scene) -> Script:
    """A member of the in-sync set comes back with nothing."""
    scene.write(3)
    yield scene.settled
    scene.one.lose_disk()
    scene.one.start()
    yield scene.acts(scene.one)


def answers_of_before(scene: Scene) -> Script:
    """Answers to a follower's first hellos come when it has said another one, and has more than they know of."""
    leader, one = scene.leader, scene.one
    scene.late(leader, one, 0.25)
    scene.world.network.reset(leader.host, one.host, dialled_by=one.host)
    yield scene.did(one, Hello)
    end = scene.end(leader)
    scene.write(3)
    scene.world.scheduler.call_later(0.22, scene.hear)
    yield scene.did(one, Progress, lambda message: message.durable_lsn > end)
    yield scene.after(0.01)
    scene.world.network.reset(leader.host, one.host, dialled_by=one.host)
    yield scene.after(0.3)


def a_leader_cut_off(scene: Scene) -> Script:
    """A leader that nobody reaches any more still holds its lease; its connections are reset."""
    scene.isolate(scene.leader)
    for node in (scene.one, scene.other):
        scene.world.network.reset(scene.leader.host, node.host)
    yield scene.serves(scene.one, scene.other)


def a_deaf_leader(scene: Scene) -> Script:
    """A leader reaches all others, and none of them reaches it: one of them leads, and once is enough."""
    epoch = scene.epoch
    scene.silence(scene.one, scene.leader)
    scene.silence(scene.other, scene.leader)
    yield scene.serves(scene.one, scene.other)
    scene.write(3)
    yield scene.written
    yield scene.after(4.0)
    scene.expect(scene.epoch == epoch + 1, f"one epoch more than {epoch}; it is {scene.epoch}")
    scene.expect(not scene.listed(scene.leader), "the deaf one has left the in-sync set")


def a_deaf_candidate(scene: Scene) -> Script:
    """A replica may be elected that nobody reaches: it gives way."""
    epoch = scene.epoch
    scene.silence(scene.leader, scene.one)
    scene.silence(scene.other, scene.one)
    scene.leader.kill()
    yield lambda: scene.epoch > epoch
    scene.leader.start()
    yield scene.serves(scene.leader, scene.other)
    scene.write(3)
    yield scene.written


def a_deaf_leader_alone(scene: Scene) -> Script:
    """With one of the others dead nobody could acknowledge more than a deaf leader: it stays."""
    epoch = scene.epoch
    scene.other.kill()
    scene.silence(scene.one, scene.leader)
    yield scene.after(4.0)
    scene.expect(scene.epoch == epoch, f"still epoch {epoch}; it is {scene.epoch}")


SCENES: dict[str, Callable[[Scene], Script]] = {
    scene.__name__: scene
    for scene in (
        a_slow_follower,
        an_outage,
        a_silent_link,
        a_newcomer,
        a_leader_restarts,
        an_answer_lost,
        a_member_less,
        an_unheard_tail,
        two_quick_failovers,
        a_lower_high_watermark,
        a_tail_to_lend,
        control_that_forgot_who_left,
        an_epoch_that_control_forgot,
        an_epoch_begun_twice,
        a_copy_of_the_same_life,
        a_copy_of_a_former_life,
        a_copy_of_a_start,
        a_short_log,
        a_lost_disk,
        answers_of_before,
        a_leader_cut_off,
        a_deaf_leader,
        a_deaf_candidate,
        a_deaf_leader_alone,
    )
}
