"""Create the mutants of a source file: mutmut's operators on every expression and statement.

mutmut itself mutates only functions without decorators. The tables, statements and dataclasses of
this project are module-level code, so this module walks the whole file.

Not mutated:

- Annotations, decorators, imports, the type of a ``cast`` and ``__all__``: they are types or belong
  to other packages.
- Calls and names of loggers, a dictionary named ``extra``, the label of ``skipping_if_locked``:
  they only affect log lines.
- Calls of ``gettext`` and its variants, strings in a ``raise`` or in a function named ``_log`` or
  ``_report``: tests don't pin prose.
- Strings of several words, for the same reason. In schedules, policies and utils they are mutated,
  because they may be schedules.
- ``reach``: a sync point does nothing outside of tests.
- ``alias_for``, ``using``, the model of an ``Update`` or a ``Select``: they select the database,
  and the tests have only one.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

ROOT = Path(__file__).parents[2]

NOT_CODE = cst.Annotation, cst.Decorator, cst.Import, cst.ImportFrom
PROSE = "_", "gettext", "ngettext", "pgettext", "npgettext", "gettext_lazy", "ngettext_lazy"
OMITTED_CALLS = m.Call(
    m.Attribute(m.Name("logger") | m.Name("logging"))
    | m.Attribute(attr=m.OneOf(*(m.Name(name) for name in PROSE)))
    | m.OneOf(*(m.Name(name) for name in (*PROSE, "reach", "alias_for")))
)
LOGS = m.FunctionDef(m.Name("_log") | m.Name("_report"))
OMITTED_ARGUMENTS = m.Arg(keyword=m.Name("using")) | m.Arg(
    m.Name("using") | m.Call(m.Name("alias_for"))
)


def _drop_call(node: cst.Expr) -> Iterable[cst.BaseSmallStatement]:
    """``f()`` -> ``pass``"""
    if isinstance(node.value, cst.Call):
        yield cst.Pass()


def _negate(node: cst.If | cst.While | cst.CompIf) -> Iterable[cst.CSTNode]:
    """``if a`` -> ``if not a``"""
    test = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    yield node.with_changes(test=cst.UnaryOperation(cst.Not(), test))


OPERATORS: list[tuple[Any, Callable[[Any], Iterable[cst.CSTNode]]]] = [
    *mutation_operators,
    (cst.Expr, _drop_call),
    ((cst.If, cst.While, cst.CompIf), _negate),
]


class Source:
    """A source file to mutate."""

    def __init__(self, path: Path) -> None:
        self.path = path
        """Relative to the project."""
        self.text = (ROOT / path).read_text()
        self.wrapper = MetadataWrapper(cst.parse_module(self.text))
        self.tree = ast.dump(ast.parse(self.text))

    @property
    def module_name(self) -> str:
        return ".".join(self.path.with_suffix("").parts)

    def code(self, node: cst.CSTNode) -> str:
        return self.wrapper.module.code_for_node(node)

    @cached_property
    def statements(self) -> list[str]:
        """The code of each statement of the module."""
        return [self.code(statement) for statement in self.wrapper.module.body]

    def with_statement(self, number: int, changed: cst.CSTNode) -> str:
        before = len("".join(map(self.code, self.wrapper.module.header)))
        before += sum(map(len, self.statements[:number]))
        after = before + len(self.statements[number])
        return self.text[:before] + self.code(changed) + self.text[after:]


@dataclass(frozen=True)
class Mutant:
    source: Source
    line: int
    statement: int
    """Index of the module's statement."""
    function: str
    """The outermost function or method around the mutation; empty for code that runs at import."""
    first_line: int
    """First line of that function, including its decorators."""
    original: cst.CSTNode
    mutated: cst.CSTNode
    key: str
    """Identifies the mutant. The key doesn't change if the expression moves within the file."""

    @cached_property
    def text(self) -> str:
        """The whole mutated file."""
        statement = self.source.wrapper.module.body[self.statement]
        changed = cast(cst.CSTNode, statement.deep_replace(self.original, self.mutated))
        return self.source.with_statement(self.statement, changed)

    @cached_property
    def change(self) -> tuple[str, str]:
        """The changed lines, before and after."""
        before, after = self.source.text.splitlines(), self.text.splitlines()
        lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
        removed, added = (
            " ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+"
        )
        return removed, added

    def __str__(self) -> str:
        removed, added = self.change
        return (
            f"{self.source.path}:{self.line} {self.function or 'module'}\n    - {removed}\n    + "
            f"{added}"
        )

    @cached_property
    def valid(self) -> bool:
        """Whether the mutant compiles and differs from the original program."""
        try:
            tree = ast.parse(self.text)
            compile(tree, str(self.source.path), "exec")
        except (SyntaxError, ValueError):
            return False
        return ast.dump(tree) != self.source.tree


class _Finder(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source
        self.mutants: list[Mutant] = []
        self._around: list[cst.CSTNode] = []
        """The nodes from the module to the current one."""
        self._statements = {
            id(statement): at for at, statement in enumerate(source.wrapper.module.body)
        }
        self._seen: Counter[str] = Counter()

    def on_visit(self, node: cst.CSTNode) -> bool:
        self._around.append(node)
        if self._is_omitted(node):
            return False
        for kind, operator in OPERATORS:
            if isinstance(node, kind):
                for mutated in operator(node):
                    if not _changes_what_is_omitted(node, mutated):
                        self._add(node, mutated)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        self._around.pop()

    def _is_omitted(self, node: cst.CSTNode) -> bool:
        if isinstance(node, NOT_CODE):
            return True
        if m.matches(node, OMITTED_CALLS | m.Expr(OMITTED_CALLS)):
            return True
        if isinstance(node, cst.SimpleString):
            return self._is_prose(node) or any(
                m.matches(outer, m.Raise() | LOGS) for outer in self._around
            )
        if isinstance(node, cst.Arg):
            call = self._around[-2]
            return isinstance(call, cst.Call) and _argument_left_out(call, node)
        return m.matches(
            node,
            m.If(m.Name("TYPE_CHECKING"))
            | m.Assign([m.AssignTarget(m.Name("__all__") | m.Name("extra") | m.Name("logger"))]),
        )

    def _is_prose(self, node: cst.SimpleString) -> bool:
        return " " in node.raw_value and {"schedules", "policies", "utils"}.isdisjoint(
            self.source.path.parts
        )

    def _add(self, original: cst.CSTNode, mutated: cst.CSTNode) -> None:
        function, first_line = self._function()
        what = "\0".join([function, self.source.code(original), self.source.code(mutated)])
        self._seen[what] += 1
        self.mutants.append(
            Mutant(
                self.source,
                self.get_metadata(PositionProvider, original).start.line,
                next(
                    self._statements[id(node)]
                    for node in self._around
                    if id(node) in self._statements
                ),
                function,
                first_line,
                original,
                mutated,
                f"{self.source.path}\0{what}\0{self._seen[what]}",
            )
        )

    def _function(self) -> tuple[str, int]:
        """Return the outermost function whose body contains the current node, and its first line.

        Defaults don't count: Python evaluates them at import.
        """
        names = []
        for outer, inner in pairwise(self._around):
            if isinstance(outer, cst.ClassDef):
                names.append(outer.name.value)
            elif isinstance(outer, cst.FunctionDef):
                if inner is not outer.body:
                    break
                first = outer.decorators[0] if outer.decorators else outer.name
                line = self.get_metadata(PositionProvider, first).start.line
                return ".".join([*names, outer.name.value]), line
        return "", 0


def _argument_left_out(call: cst.Call, argument: cst.Arg) -> bool:
    if m.matches(call.func, m.Name("cast")):
        return argument is call.args[0]
    if m.matches(call.func, m.Name("skipping_if_locked") | m.Name("Update") | m.Name("Select")):
        return argument is call.args[0]
    return m.matches(call.func, m.Attribute(attr=m.Name("using"))) or m.matches(
        argument, OMITTED_ARGUMENTS
    )


def _changes_what_is_omitted(node: cst.CSTNode, mutated: cst.CSTNode) -> bool:
    """Return whether the mutation drops or replaces an argument that isn't to be mutated."""
    if not isinstance(node, cst.Call) or not isinstance(mutated, cst.Call):
        return False
    kept = {id(argument) for argument in mutated.args}
    return any(id(each) not in kept and _argument_left_out(node, each) for each in node.args)


def mutants_of(path: Path) -> list[Mutant]:
    source = Source(path)
    finder = _Finder(source)
    source.wrapper.visit(finder)
    return finder.mutants


def shuffled(mutants: Iterable[Mutant], seed: int) -> list[Mutant]:
    """Return the mutants in an order that depends only on the seed and each mutant.

    New code doesn't reorder the other mutants.
    """
    return sorted(
        mutants, key=lambda mutant: hashlib.sha256(f"{seed}\0{mutant.key}".encode()).digest()
    )
