"""LSMQ without a line of tracing: its modules are rewritten as they are imported, so that what tracing costs where it
is off can be measured beside code that has none.

A condition on what only tracing makes (``self._tracing is None``, ``span is not None and ...``) is decided as where
nothing is traced, and the branch that is never taken goes, with the assignments that nobody reads then. Nothing here
imports anything of LSMQ: it must come first.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType

_PACKAGES = ("lsmq", "lsmq_node")
_EXCEPT = ("lsmq.tracing", "lsmq_node.tracing")
#: What is None where nothing is traced, by the last part of its name.
_NONE = re.compile(r"(?:.*\.)?(?:_?tracing|traced)")
#: Names of what is made of it.
_MADE = frozenset({"tracing", "traced", "span"})


class _Rewriter(ast.NodeTransformer):
    """``places``: how many conditions were decided."""

    def __init__(self) -> None:
        self.places = 0

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        left = node.left.target if isinstance(node.left, ast.NamedExpr) else node.left
        nothing = isinstance(node.comparators[0], ast.Constant) and node.comparators[0].value is None
        if len(node.ops) != 1 or not nothing or not _NONE.fullmatch(ast.unparse(left)):
            return node
        if not isinstance(node.ops[0], ast.Is | ast.IsNot):
            return node
        self.places += 1
        return ast.copy_location(ast.Constant(isinstance(node.ops[0], ast.Is)), node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        decides = isinstance(node.op, ast.Or)
        if any(_is(value, decides) for value in node.values):  # The others ask for something, and do nothing.
            return ast.copy_location(ast.Constant(decides), node)
        kept = [value for value in node.values if not _is(value, not decides)]
        if len(kept) < 2:
            return kept[0] if kept else ast.copy_location(ast.Constant(not decides), node)
        node.values = kept
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        return node.body if _is(node.test, True) else node.orelse if _is(node.test, False) else node

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        if _is(node.test, True):
            return node.body
        if _is(node.test, False):
            return node.orelse or ast.copy_location(ast.Pass(), node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        before = self.places
        self.generic_visit(node)
        if self.places > before:
            ends = next((at for at, each in enumerate(node.body) if isinstance(each, ast.Return)), len(node.body))
            del node.body[ends + 1 :]  # What came where something is traced.
            _Unread(node).visit(node)
        return node


class _Unread(ast.NodeTransformer):
    """Drops what is assigned to names of tracing that are not read any more in the function."""

    def __init__(self, function: ast.AST) -> None:
        self._read = {
            each.id for each in ast.walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
        }

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        (target,) = node.targets if len(node.targets) == 1 else (None,)
        if isinstance(target, ast.Name) and target.id in _MADE and target.id not in self._read:
            return ast.copy_location(ast.Pass(), node)
        return node


def _is(node: ast.expr, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def without_tracing(source: str | bytes) -> tuple[ast.Module, int]:
    """The module, and how many of its conditions were decided."""
    tree, rewriter = ast.parse(source), _Rewriter()
    rewriter.visit(tree)
    return ast.fix_missing_locations(tree), rewriter.places


class _Loader(SourceFileLoader):
    places: dict[str, int]

    def get_code(self, fullname: str) -> CodeType:
        """Of the source, whatever compiled code lies beside it."""
        path = self.get_filename(fullname)
        tree, places = without_tracing(self.get_data(path))
        self.places[fullname] = places
        code: CodeType = compile(tree, path, "exec", dont_inherit=True)
        return code


class WithoutTracing(MetaPathFinder):
    """Put it first: modules of ours that are imported from then on have no tracing."""

    def __init__(self) -> None:
        #: Conditions that were decided, by module.
        self.places: dict[str, int] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in _PACKAGES or fullname in _EXCEPT:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            found = finder.find_spec(fullname, path, target)
            if found is not None:
                if isinstance(found.loader, SourceFileLoader):
                    found.loader = _Loader(found.loader.name, found.loader.path)
                    found.loader.places = self.places
                return found
        return None


def child() -> None:
    """The life of a case's process: module, function and arguments, as those of :func:`.isolate.child`, with ``absent``
    beside them."""
    module, name, arguments = sys.argv[1:]
    values = json.loads(arguments)
    finder = WithoutTracing()
    if values.pop("absent"):
        assert "lsmq" not in sys.modules, "what was imported before has its tracing"
        sys.meta_path.insert(0, finder)
    print(
        json.dumps(getattr(importlib.import_module(module), name)(**values) | {"places": sum(finder.places.values())})
    )
