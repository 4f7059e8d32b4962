"""What is allowed, as pure decisions."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.errors import InvalidRequest
from lsmq_node.rights import EVERYTHING, Action, Binding, CheckedRight, ResourceKind, RightsBook
from lsmq_node.rights.book import PRINCIPAL, ROLE, Grants, Token, digest_of, role_document
from lsmq_node.rights.model import BUILT_IN, NAMED_KINDS, TENANT

NAMES = st.text("ab.", max_size=4)
PATTERNS = st.builds(lambda name, star: name + "*" * star, NAMES, st.booleans()).filter(bool)
RIGHTS = st.builds(CheckedRight, st.sampled_from(sorted(NAMED_KINDS)), PATTERNS, st.sampled_from(Action))


def book(*roles: Binding, rights: tuple[CheckedRight, ...] = ()) -> RightsBook:
    body = Grants(roles, rights).pack()
    return RightsBook({} if body is None else {f"{PRINCIPAL}p": body})


def test_a_prefix_leaves_exactly_what_begins_with_it() -> None:
    names = ["".join(letters) for length in range(4) for letters in product("ab", repeat=length)]
    patterns = [*filter(None, names), *(f"{name}*" for name in names)]
    for pattern, prefix in product(patterns, names):
        right = CheckedRight(ResourceKind.TOPIC, pattern, Action.READ)
        left = right.within(prefix)
        for name in (*names, "*"):
            covered = left is not None and left.covers(name)
            wanted = right.covers(name) and (name.startswith(prefix) if name != "*" else not prefix)
            assert covered == wanted, (pattern, prefix, name, left)


@given(st.lists(RIGHTS, max_size=4), NAMES, st.sampled_from(sorted(NAMED_KINDS)), st.sampled_from(Action))
def test_nothing_is_allowed_that_no_right_says(
    rights: list[CheckedRight], name: str, kind: ResourceKind, action: Action
) -> None:
    known = book(rights=tuple(rights))
    said = [each for each in rights if each.kind is kind and each.covers(name)]
    allowed = any(action is Action.DESCRIBE or each.action in (action, Action.ALL) for each in said)
    holder = known.holder("p")
    assert holder.may(kind, name, action) == holder.may(kind, name, action) == allowed
    assert (known.why("p", kind, name, action) is not None) == allowed
    assert not known.holder("q").may(kind, name, action)


@pytest.mark.parametrize("role", BUILT_IN)
def test_a_role_with_a_prefix_is_not_for_the_cluster(role: str) -> None:
    holder = book(Binding(role, "acme.")).holder("p")
    for kind in ResourceKind:
        for action in Action:
            assert not holder.may(kind, "", action) and not holder.may(kind, "acme", action)
    assert not holder.may(ResourceKind.TOPIC, "globex.x", Action.DESCRIBE)


def test_a_document_of_a_later_release_gives_nobody_a_right() -> None:
    later = book(Binding("admin"))
    assert later.holder("p").may(ResourceKind.TOPIC, "t", Action.DELETE)
    body = Grants((Binding("admin"),)).pack()
    assert body is not None
    found = RightsBook({f"{PRINCIPAL}p": body.replace(b"version\x01", b"version\x02"), "else/x": body})
    assert sorted(found.unread) == ["else/x", f"{PRINCIPAL}p"]
    assert not found.holder("p").may(ResourceKind.TOPIC, "t", Action.DESCRIBE)


def test_a_role_that_is_called_like_a_built_in_one_changes_nothing() -> None:
    """As one does that was made before there was the built-in one."""
    everything = role_document(BUILT_IN["admin"])
    known = {f"{ROLE}monitor": everything, f"{PRINCIPAL}p": Grants((Binding("monitor"),)).pack() or b""}
    assert not RightsBook(known).holder("p").may(ResourceKind.TOPIC, "t", Action.READ)


def test_a_tenant_of_no_prefix_may_nothing_whoever_says_that_he_is_one() -> None:
    for holder in (book(Binding(TENANT)).holder("p"), book().holder("p", (Binding(TENANT),))):
        assert not holder.rights
    assert book().holder("p", (Binding(TENANT, "p."),)).may(ResourceKind.TOPIC, "p.t", Action.WRITE)


def test_what_has_changed_since_is_read_and_the_rest_is_as_it_was() -> None:
    one, other = Grants((Binding("consumer"),)).pack(), Grants((Binding("producer"),)).pack()
    assert one is not None and other is not None
    before = RightsBook({f"{PRINCIPAL}p": one, f"{PRINCIPAL}q": one})
    after = RightsBook({f"{PRINCIPAL}p": other, f"{PRINCIPAL}q": one}, before)
    assert after.holder("p").may(ResourceKind.TOPIC, "t", Action.WRITE)
    assert not after.holder("p").may(ResourceKind.TOPIC, "t", Action.READ)
    assert after.grants["q"] is before.grants["q"]
    assert not RightsBook({f"{PRINCIPAL}q": one}, after).knows("p")


def test_a_token_is_known_by_what_only_its_holder_knows() -> None:
    token = Token("p", "01234567", digest_of("lsmq_secret"), 1_000, 2_000, "admin")
    found = RightsBook({token.key: token.pack()}).token("lsmq_secret")
    assert found == token and "secret" not in repr(found)
    assert token.is_good(1_999) and not token.is_good(2_000)
    assert RightsBook({token.key: token.pack()}).token("lsmq_Secret") is None


@pytest.mark.parametrize(
    ("kind", "pattern", "action"),
    [("topics", "*", "read"), ("topic", "", "read"), ("topic", "a*b", "read"), ("topic", "**", "read"),
     ("topic", "x" * 257, "read"), ("topic", "*", "reads"), ("cluster", "n1", "alter"), ("rights", "x*", "alter")],
)  # fmt: skip
def test_what_is_no_right_is_refused(kind: str, pattern: str, action: str) -> None:
    with pytest.raises(InvalidRequest):
        CheckedRight.parsed(kind, pattern, action)


def test_every_name_there_may_be_is_allowed_by_what_says_every_name() -> None:
    everything = CheckedRight(ResourceKind.TOPIC, EVERYTHING, Action.READ)
    assert everything.covers(EVERYTHING)
    for pattern in ("t", "t*", "**"):
        assert not CheckedRight(ResourceKind.TOPIC, pattern, Action.READ).covers(EVERYTHING)
    for prefix in ("*", "t", "t."):
        narrowed = everything.within(prefix)
        assert narrowed is not None and not narrowed.covers(EVERYTHING)
