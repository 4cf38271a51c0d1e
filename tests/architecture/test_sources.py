"""The house style as far as a machine can see it: words, sizes, doors and docstrings."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.conftest import Source
from tests.architecture.long import lengths

_VENDOR = re.compile(r"(?<![a-z])(cuda|hip|rocm|xpu|xla|nvml)(?![a-z])", re.IGNORECASE)
#: Prefixes of variables that the record keeps, and torch's own types of devices: what steers torch,
#: not devices that are driven.
_ALLOWED = {"records/redact.py", "records/lacks.py"}
#: In one test: whoever reads that it failed must be able to tell of what.
_MOST_CHECKS = 8
_TESTS = Path(__file__).resolve().parents[1]
#: What papers and torch call these parts of a model: each family has its own, under that name.
_OF_EACH_FAMILY = {"attention", "mlp"}


def docstrings(tree: ast.Module) -> set[int]:
    """Return the first line of every docstring."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = (node.body for node in ast.walk(tree) if isinstance(node, kinds))
    first = (body[0] for body in bodies if body and isinstance(body[0], ast.Expr))
    return {
        each.value.lineno
        for each in first
        if isinstance(each.value, ast.Constant) and isinstance(each.value.value, str)
    }


def code_tokens(source: Source) -> Iterator[tokenize.TokenInfo]:
    """Yield the tokens of ``source`` that are neither comment nor docstring."""
    described = docstrings(source.tree)
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        is_docstring = token.type == tokenize.STRING and token.start[0] in described
        if token.type != tokenize.COMMENT and not is_docstring:
            yield token


def test_no_vendors_word_is_in_the_code(sources: list[Source]) -> None:
    found = [
        f"{source.name}:{token.start[0]} {token.string}"
        for source in sources
        if source.name not in _ALLOWED and _VENDOR.search(source.text)
        for token in code_tokens(source)
        if _VENDOR.search(token.string)
    ]
    assert found == []


def test_the_search_for_vendors_words_sees_code_and_strings_and_not_docstrings() -> None:
    text = (
        '"""About cuda."""\n# hip\nimport torch\ntorch.cuda.x("rocm:0")\nship = chip = is_xla = 1\n'
    )
    tokens = code_tokens(Source("x.py", text))
    assert [t.string for t in tokens if _VENDOR.search(t.string)] == ["cuda", '"rocm:0"', "is_xla"]


def dotted(node: ast.expr) -> str:
    """Return a name and its attributes as they are written; what is computed before it is ""."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def calls(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the dotted name of every call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node.lineno, dotted(node.func)


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the dotted name of everything imported from a module by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def test_only_the_command_line_prints_or_exits(sources: list[Source]) -> None:
    forbidden = {"print", "exit", "quit", "sys.exit", "os._exit", "os.abort"}
    forbidden |= {"sys.stdout.write", "sys.stderr.write", "click.echo", "logging.basicConfig"}
    found = [
        f"{source.name}:{line} {name}"
        for source in sources
        if not source.name.startswith("cli/")
        for line, name in (*calls(source.tree), *imported(source.tree))
        if name in forbidden
    ]
    #: Between the fork server and the process it makes there is one that only ends; ``host.leave``
    #: ends a process of a run.
    ending = {"processes/fork_server.py", "plugin/builtin/host.py"}
    assert [name for name in found if name.split(":")[0] not in ending] == []


def test_only_the_config_touches_the_environment(sources: list[Source]) -> None:
    forbidden = {"os.environ", "os.environb", "os.getenv", "os.putenv", "os.unsetenv"}
    found = [
        f"{source.name}:{node.lineno} {dotted(node)}"
        for source in sources
        if source.name not in ("config.py", "wire/address.py", "__init__.py")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute) and dotted(node) in forbidden
    ]
    found += [
        f"{source.name}:{line} {name}"
        for source in sources
        for line, name in imported(source.tree)
        if name in forbidden
    ]
    assert found == []


#: Take any number of arguments, in torch, matplotlib, rich and the standard library.
_VARIADIC = {"add_row", "apply", "expand", "empty", "reshape", "save_for_backward", "plot"}
_VARIADIC |= {"Progress", "pack", "zip", "hypot", "map", "get_referrers", "elastic_launch"}
_VARIADIC |= {"get_referents"}
#: Pinned by digest: a change of style is not worth a new version.
_PINNED = "reference/"


def variadic(tree: ast.Module) -> set[str]:
    """Return the names of functions in ``tree`` that take any number of arguments."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {n.name for n in ast.walk(tree) if isinstance(n, kinds) and n.args.vararg}


def called(node: ast.expr) -> str:
    """Return the last name of what is called: ``add_row`` of ``table.add_row``."""
    if isinstance(node, ast.Call):
        return called(node.func)
    return dotted(node).rpartition(".")[2]


def starred(
    node: ast.AST, known: set[str], handed_on: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Yield every call below ``node`` that is given a tuple as its arguments.

    A function may hand on its own ``*args`` (torch calls it ``args`` where it is no star), and give
    a sequence to what is ``known`` to take any number of arguments.
    """
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        own = {arg.arg for arg in (node.args.vararg, node.args.kwarg) if arg}
        handed_on |= own | {arg.arg for arg in node.args.args if arg.arg == "args"}
    for given in node.args if isinstance(node, ast.Call) else ():
        if isinstance(given, ast.Starred):
            assert isinstance(node, ast.Call)
            is_display = isinstance(given.value, (ast.Tuple, ast.List))
            names = {n.id for n in ast.walk(given.value) if isinstance(n, ast.Name)}
            if is_display or not (called(node.func) in known or names & handed_on):
                yield f"{node.lineno} {ast.unparse(given)}"
    for child in ast.iter_child_nodes(node):
        yield from starred(child, known, handed_on)


def test_arguments_travel_as_values_and_not_as_tuples(sources: list[Source]) -> None:
    known = _VARIADIC.union(*(variadic(source.tree) for source in sources))
    found = [
        f"{source.name}:{call}"
        for source in sources
        if not source.name.startswith(_PINNED)
        for call in starred(source.tree, known)
    ]
    assert found == []


def test_a_tuple_of_arguments_is_seen_and_a_functions_own_are_not() -> None:
    text = "def f(*args):\n g(*args)\n many(*row)\n g(*pair)\n many(*(1, 2))\n"
    assert list(starred(ast.parse(text), {"many"})) == ["4 *pair", "5 *(1, 2)"]


def only_stored(value: ast.expr, given: set[str]) -> bool:
    """Tell whether ``value`` is one that is ``given``, a constant, or a new empty container."""
    if isinstance(value, (ast.Tuple, ast.List, ast.Set)):
        return all(only_stored(each, given) for each in value.elts)
    if isinstance(value, ast.Call):
        made = {"bytearray", "deque", "dict", "list", "set"}
        return not (value.args or value.keywords) and called(value.func) in made
    if isinstance(value, ast.Dict):
        return not value.keys
    return isinstance(value, ast.Constant) or (isinstance(value, ast.Name) and value.id in given)


def written_out(node: ast.ClassDef) -> bool:
    """Tell whether ``node`` has a constructor that ``@dataclass`` would write."""
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            given = {arg.arg for arg in (*each.args.args, *each.args.kwonlyargs)}
            lines = each.body[1:] if ast.get_docstring(each) else each.body
            assigned = [x for x in lines if isinstance(x, (ast.Assign, ast.AnnAssign))]
            values = [x.value for x in assigned if x.value is not None]
            return len(assigned) == len(lines) and all(only_stored(x, given) for x in values)
    return False


def test_no_constructor_is_written_where_a_dataclass_says_the_same(sources: list[Source]) -> None:
    """A class that inherits is left out: its base may not be a dataclass."""
    found = [
        f"{source.name} {node.name}"
        for source in sources
        if not source.name.startswith(_PINNED)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef) and not node.bases and written_out(node)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("self.a, self._b = a, []", True),
        ("self.seen: dict[str, int] = {}", True),
        ("self.a = len(a)", False),
        ("self.a = a\n  a.begin()", False),
    ],
)
def test_a_constructor_that_only_stores_is_seen(line: str, expected: bool) -> None:
    tree = ast.parse(f"class X:\n def __init__(self, a):\n  'Say.'\n  {line}\n")
    (node,) = tree.body
    assert isinstance(node, ast.ClassDef)
    assert written_out(node) is expected


def test_every_class_has_a_name_of_its_own(sources: list[Source]) -> None:
    """In llmb and all plugins; an underscore, or capitals, make no other name."""
    plugins = sorted(_TESTS.parent.glob("plugins/**/*.py"))
    assert plugins
    places: dict[str, list[str]] = {}
    for source in (*sources, *(Source(str(p), p.read_text(encoding="utf-8")) for p in plugins)):
        for node in source.definitions():
            if isinstance(node, ast.ClassDef):
                name = node.name.lstrip("_").lower()
                places.setdefault(name, []).append(f"{source.name}:{node.lineno} {node.name}")
    repeated = {name: each for name, each in places.items() if len(each) > 1}
    assert {n: each for n, each in repeated.items() if n not in _OF_EACH_FAMILY} == {}


def test_the_list_of_long_code_has_the_longest_file_and_function_first() -> None:
    file, functions = lengths("a.py", "def f():\n    pass\n\n\nclass X:\n    def g(self): pass\n")
    assert file == (6, "a.py")
    assert sorted(functions, reverse=True) == [(2, "a.py:1 f"), (1, "a.py:6 g")]


def public(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield every public definition below ``node`` that can be reached from outside."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, kinds) and not child.name.startswith("_"):
            yield prefix + child.name, child
            if isinstance(child, ast.ClassDef):
                yield from public(child, f"{prefix}{child.name}.")
        elif isinstance(child, (ast.If, ast.Try, ast.With)):
            yield from public(child, prefix)


def test_every_public_function_class_and_method_has_a_docstring(sources: list[Source]) -> None:
    found = [
        f"{source.name} {name}"
        for source in sources
        for name, node in public(source.tree)
        if not ast.get_docstring(node)
    ]
    assert found == []


def asks_for_a_family(node: ast.AST) -> bool:
    """Tell whether ``node`` is an ``isinstance`` of a family's shape."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("isinstance", "issubclass"):
        return False
    return any(f"{name}Shape" in ast.unparse(node) for name in ("Llama", "Gpt2", "Bert"))


def test_no_module_asks_of_which_family_a_shape_is(sources: list[Source]) -> None:
    assert asks_for_a_family(ast.parse("isinstance(a.shape, BertShape)", mode="eval").body)
    assert not asks_for_a_family(ast.parse("family_of(a.shape)", mode="eval").body)
    found = [
        f"{source.name}:{node.lineno}"
        for source in sources
        if not source.name.startswith("reference/")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and asks_for_a_family(node)
    ]
    assert found == [], "llmb/families has what differs between families"


def test_every_module_has_a_docstring_of_one_to_three_sentences_first(
    sources: list[Source],
) -> None:
    assert [source.name for source in sources if not ast.get_docstring(source.tree)] == []


def checks(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every function below ``tree`` with the number of its assertions."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, sum(isinstance(each, ast.Assert) for each in ast.walk(node))


def test_no_test_has_more_checks_than_a_subject_needs() -> None:
    """But for whole runs in ``tests/e2e``: one takes long, and is looked at from every side."""
    files = [*_TESTS.rglob("*.py"), *_TESTS.parent.glob("plugins/*/tests/**/*.py")]
    found = {
        f"{path.relative_to(_TESTS.parent)} {name}": count
        for path in sorted(files)
        if _TESTS / "e2e" not in path.parents
        for name, count in checks(ast.parse(path.read_text(encoding="utf-8")))
        if count > _MOST_CHECKS
    }
    assert len(files) > 100
    assert found == {}


def test_checks_are_counted_in_loops_and_functions_within_too() -> None:
    text = "def test_a():\n    for _ in ():\n        assert 1\n"
    text += "    def look():\n        assert 2\n    assert 3\n"
    assert dict(checks(ast.parse(text))) == {"test_a": 3, "look": 1}
