"""The house style as far as a machine can see it: words, sizes, doors and docstrings."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.conftest import Source

_VENDOR = re.compile(r"(?<![a-z])(cuda|hip|rocm|xpu|xla|nvml)(?![a-z])", re.IGNORECASE)
#: Prefixes of variables that the record keeps: what steers torch, not devices that are driven.
_ALLOWED = {"records/redact.py"}
_MOST_LINES = 400
_MOST_LINES_OF_A_FUNCTION = 60
#: In one test: whoever reads that it failed must be able to tell of what.
_MOST_CHECKS = 8
_TESTS = Path(__file__).resolve().parents[1]


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
        if source.name not in ("config.py", "wire/address.py")
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


def test_no_module_is_longer_than_a_head_holds(sources: list[Source]) -> None:
    lines = {source.name: source.text.count("\n") for source in sources}
    assert {name: count for name, count in lines.items() if count > _MOST_LINES} == {}


def test_no_function_is_longer_than_a_page(sources: list[Source]) -> None:
    found = {
        f"{source.name} {node.name}": node.end_lineno - node.lineno + 1
        for source in sources
        for node in source.definitions()
        if not isinstance(node, ast.ClassDef)
    }
    assert {k: count for k, count in found.items() if count > _MOST_LINES_OF_A_FUNCTION} == {}


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
