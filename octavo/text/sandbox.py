"""The Jinja environment for chat templates: immutable, sandboxed, and bounded.

A template comes with a model, so it is not trusted. It can't reach Python (jinja2's immutable
sandbox, and an allow list of methods, filters and globals on top), and it can't run away:

- Every loop body and every call begins with a check of the deadline, put there when the template is
  compiled. Everything else a template can do is one operation on values of bounded size, so a check
  comes soon, in the rendering thread itself: nothing has to be killed and nothing spins on.
- Whatever can make a large value (`*`, `+`, `~`, `**`, `%`, join, replace, format, indent, macros)
  computes the size first and refuses. Values are measured as they would be written out, so lists
  that refer to each other many times over count in full.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from jinja2 import Undefined, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from octavo.text.budget import LimitError, RenderBudget


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PLAIN_FILTERS = _names(
    "abs attr capitalize count d default dictsort first float groupby int items last length list "
    "lower map max min reject rejectattr reverse round select selectattr sort string sum title "
    "trim unique upper wordcount"
)
_METHODS: dict[type, frozenset[str]] = {
    str: _names(
        "strip lstrip rstrip split rsplit splitlines partition rpartition startswith endswith "
        "removeprefix removesuffix replace format upper lower title capitalize swapcase "
        "casefold find rfind index rindex count isdigit isalpha isalnum isspace isupper islower "
        "isnumeric isdecimal join"
    ),
    dict: _names("get items keys values copy"),
    list: _names("index count copy"),
    tuple: _names("index count"),
    int: _names(""),
    float: _names("is_integer"),
}
_TEXT_FILTERS = _names("string upper lower capitalize title trim wordcount format escape e safe")
_EQUALITY_TESTS = _names("eq equalto == ne != lt lessthan < le <= gt greaterthan > ge >= in")
_MAX_INT_BITS = 4096
_MAX_NODES = 50_000  # of the syntax tree; compiling takes time in proportion
# A width or precision of 1000 or more, or one that is a value; and names with parentheses inside.
_WIDE_PERCENT = re.compile(r"%\([^()]*\(|%(?:\([^()]*\))?[-#0 +]*(?:\*|\d{4,}|\d*\.(?:\*|\d{4,}))")
_WIDE_BRACES = re.compile(r"\{[^{}]*:[^{}]*(?:\{|\d{4,})")


class _Instrument(NodeTransformer):
    """Puts the deadline check into loop bodies and guards around what jinja2 doesn't intercept."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_guard("tick", node), lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _guard("concatenate", node, *node.nodes)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _measured(node.expr)
        for operand in node.ops:
            operand.expr = _measured(operand.expr)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Node:
        self.generic_visit(node)
        if node.name in _EQUALITY_TESTS:
            node.node = _measured(node.node)
            node.args = [_measured(arg) for arg in node.args]
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        node.key = _measured(node.key)  # hashing walks nested tuples
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _guard("charged", node, node) if isinstance(node.arg, nodes.Slice) else node


def _guard(name: str, node: nodes.Node, *args: nodes.Expr) -> nodes.Call:
    line = node.lineno
    target = nodes.EnvironmentAttribute(name, lineno=line)
    return nodes.Call(target, list(args), [], None, None, lineno=line)


def _measured(expr: nodes.Expr) -> nodes.Expr:
    return expr if isinstance(expr, nodes.Const) else _guard("measured", expr, expr)


class _Generation(Extension):
    """`{% generation %}` marks the assistant's part for training; here it only has a body."""

    tags = {"generation"}  # noqa: RUF012 (declared as an instance variable by jinja2)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates. `budget` must be set in the thread that compiles or renders."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        self.budget: ContextVar[RenderBudget] = ContextVar("render_budget")
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _Generation],
            optimized=False,  # nothing is computed while compiling
            finalize=_finalize,
        )
        guarded: dict[str, Callable[..., Any]] = {
            "join": self._join,
            "replace": self._replace,
            "indent": self._indent,
            "format": lambda text, *args, **named: self._percent(text, args or named),
            "tojson": self._to_json,
            "safe": str,
            "escape": lambda value: html.escape(str(value)),
            "e": lambda value: html.escape(str(value)),
        }
        plain = {name: FILTERS[name] for name in _PLAIN_FILTERS}
        self.filters = {
            name: self._filter(name, function) for name, function in {**plain, **guarded}.items()
        }
        self.globals = {
            "range": self.globals["range"],  # the sandbox's, with at most 100,000 numbers
            "dict": dict,
            "namespace": Namespace,
            "raise_exception": self._refuse,
            "strftime_now": lambda pattern: datetime.now().strftime(pattern[:256]),
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        if sum(1 for _ in tree.find_all(nodes.Node)) > _MAX_NODES:
            raise LimitError(f"more than {_MAX_NODES} syntax nodes")
        instrumented: nodes.Template = _Instrument().visit(tree)
        return instrumented

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kind, names in _METHODS.items():
            if isinstance(obj, kind):
                return attr in names
        return super().is_safe_attribute(obj, attr, value)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, tuple):
            self.budget.get().measure(argument)
        return super().getitem(obj, argument)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise LimitError(f"attribute {attribute!r} of {type(obj).__name__} is not available")

    # What compiled templates call.

    def tick(self) -> None:
        self.budget.get().tick()

    def measured(self, value: Any) -> Any:
        self.budget.get().measure(value)
        return value

    def charged(self, value: Any) -> Any:
        return self.budget.get().charge(value)

    def concatenate(self, *values: Any) -> str:
        budget = self.budget.get()
        budget.check(sum(budget.measure(value, as_text=True) for value in values))
        text: str = budget.charge("".join(map(str, values)))
        return text

    def concat(self, parts: Iterable[str]) -> str:
        """Joins what a macro, a call block or a set block wrote."""
        budget = self.budget.get()
        parts = list(parts)
        budget.check(sum(map(len, parts)))
        text: str = budget.charge("".join(parts))
        return text

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(__obj, "__self__", None)
        if owner is __self:  # one of the guards above, put in by _Instrument
            return __obj(*args)
        budget = __self.budget.get()
        budget.tick()
        for value in (*args, *kwargs.values()):
            budget.measure(value)
        if isinstance(owner, (list, tuple)):  # index and count compare with every element
            budget.measure(owner)
        elif isinstance(owner, str):
            __self._check_method(owner, __obj.__name__, args, kwargs)
        return budget.charge(super().call(__context, __obj, *args, **kwargs))

    def _check_method(self, text: str, name: str, args: Any, kwargs: Any) -> None:
        budget = self.budget.get()
        if name == "replace" and len(args) >= 2:
            _check_replace(budget, text, *args[:2])
        elif name == "join" and args and isinstance(args[0], (list, tuple)):
            budget.check(budget.measure(args[0]) + len(text) * len(args[0]))
        elif name == "join":
            raise LimitError("str.join takes a list")
        elif name in ("split", "rsplit") and args and isinstance(args[0], str) and args[0]:
            budget.check(8 * text.count(args[0]))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        inner = super().wrap_str_format(value)
        if inner is None:
            return None
        if value.__name__ == "format_map":
            raise LimitError("str.format_map is not available")

        def checked(*args: Any, **kwargs: Any) -> str:
            self._check_format(value.__self__, "{", (*args, *kwargs.values()))
            return inner(*args, **kwargs)

        return checked

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = self.budget.get()
        if operator == "+" and not isinstance(left, (int, float)):
            budget.check(_length(left) + _length(right))
        elif operator == "*":
            _check_product(budget, left, right)
        elif operator == "**":
            _check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            return self._percent(left, right)
        return budget.charge(super().call_binop(context, operator, left, right))

    def _refuse(self, message: object) -> None:
        """`raise_exception` in templates."""
        self.budget.get().measure(message, as_text=True)
        raise LimitError(str(message)[:500])

    # Filters.

    def _filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        passes = getattr(function, "jinja_pass_arg", None)
        skip = 0 if passes is None else 1  # the context or environment comes first

        def guarded(*args: Any, **kwargs: Any) -> Any:
            budget = self.budget.get()
            budget.tick()
            for value in (*args[skip:], *kwargs.values()):
                budget.measure(value, as_text=name in _TEXT_FILTERS)
            if name == "sum" and not isinstance(kwargs.get("start", 0), (int, float)):
                raise LimitError("the sum filter adds numbers")
            return budget.charge(function(*args, **kwargs))

        if passes is not None:
            guarded.jinja_pass_arg = passes  # type: ignore[attr-defined]
        return guarded

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
        budget = self.budget.get()
        items = list(value)
        if attribute is not None:
            items = [self.getitem(item, attribute) for item in items]
        sizes = sum(budget.measure(item, as_text=True) for item in items)
        budget.check(sizes + len(d) * len(items))
        return str(d).join(map(str, items))

    def _replace(self, s: Any, old: Any, new: Any, count: int | None = None) -> str:
        budget = self.budget.get()
        budget.measure(s, as_text=True)
        text, old, new = str(s), str(old), str(new)
        _check_replace(budget, text, old, new)
        return text.replace(old, new, -1 if count is None else count)

    def _indent(
        self, s: str, width: int | str = 4, first: bool = False, blank: bool = False
    ) -> str:
        text = str(s)
        margin = len(width) if isinstance(width, str) else int(width)
        self.budget.get().check(len(text) + (text.count("\n") + 1) * margin)
        indented: str = FILTERS["indent"](text, width, first, blank)
        return indented

    def _percent(self, text: str, values: Any) -> str:
        parts = values if isinstance(values, tuple) else (values,)
        self._check_format(text, "%", parts)
        result: str = text % values
        return result

    def _check_format(self, text: str, mark: str, values: tuple[Any, ...]) -> None:
        if (_WIDE_PERCENT if mark == "%" else _WIDE_BRACES).search(text):
            raise LimitError("a width or precision of 1000 or more, or a computed one")
        budget = self.budget.get()
        sizes = [budget.measure(value, as_text=True) for value in values]
        fields = text.count(mark)
        once = mark == "%" and "%(" not in text  # each value is written once, else up to every time
        written = sum(sizes) if once else fields * max(sizes, default=0)
        budget.check(len(text) + fields * 1000 + written)

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Like Hugging Face's: not escaped for HTML, keys in their order."""
        budget = self.budget.get()
        budget.measure(value, as_text=True)
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        if indent is None:
            return encoder.encode(value)
        if isinstance(indent, str) or not 0 <= indent <= 16:
            raise LimitError("tojson takes an indent of 0 to 16")
        chunks = []
        size = 0
        for chunk in encoder.iterencode(value):
            size = budget.check(size + len(chunk))
            chunks.append(chunk)
        return "".join(chunks)


@pass_context
def _finalize(context: Context, value: Any) -> Any:
    """Every value that is written out is measured before it becomes text."""
    environment = context.environment
    assert isinstance(environment, ChatEnvironment)
    environment.budget.get().measure(value, as_text=True)
    return value


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, tuple)) else 0


def _check_replace(budget: RenderBudget, text: str, old: Any, new: Any) -> None:
    if isinstance(old, str) and isinstance(new, str):
        budget.check(len(text) + text.count(old) * len(new))


def _check_product(budget: RenderBudget, left: Any, right: Any) -> None:
    for sequence, times in ((left, right), (right, left)):
        if isinstance(sequence, (str, list, tuple)) and isinstance(times, int):
            budget.check(len(sequence) * max(times, 0))
    both = isinstance(left, int) and isinstance(right, int)
    if both and left.bit_length() + right.bit_length() > _MAX_INT_BITS:
        raise LimitError(f"a number of more than {_MAX_INT_BITS} bits")


def _check_power(left: Any, right: Any) -> None:
    both = isinstance(left, int) and isinstance(right, int)
    if both and left.bit_length() * abs(right) > _MAX_INT_BITS:
        raise LimitError(f"a number of more than {_MAX_INT_BITS} bits")
