"""Renew the pins of the reference, and the row of this version in the table of references.

    python tests/versions.py

Run it after every change in `llmb/reference/`. It writes `llmb/reference/PINS.sha256` and
`llmb/records/references.json`, and refuses to change the row of a version that is frozen: one that
CHANGELOG.md has as a released version, or one that made a bundle below `submissions/`.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from llmb import __version__  # noqa: E402
from llmb.families import SHAPES  # noqa: E402
from llmb.records import references  # noqa: E402
from llmb.records.references import Reference, ReferenceTable  # noqa: E402
from llmb.reference import pins  # noqa: E402

COMMAND = "python tests/versions.py"
#: Files of the reference that no step runs: number formats (elements.py describes them, formats.py
#: emulates them for the audit) and digests. Any other file counts, a new one for every family.
NOT_RUN = ("elements.py", "formats.py", "pins.py")
#: Parts of Python's syntax trees that are no code, or that only some versions of Python have.
_NO_CODE = ("type_comment", "type_params", "kind")


class FrozenError(Exception):
    """The row of a version that has been used cannot be changed."""


def own_name(family: str) -> str:
    """Return the name of a family's files: "llama-ungated" is a kind of llama, in llama.py."""
    return family.partition("-")[0]


def files_of(family: str, folder: Path = pins.FOLDER) -> list[Path]:
    """Return the files that a step of ``family`` runs: its own, and what all families share.

    Its own are the model, the shape, and the models of other families that these import. Example:
    qwen3.py, qwen3_shape.py, and llama.py.
    """
    names = {own_name(name) for name in SHAPES}
    every = sorted(path for path in folder.glob("*.py") if path.name not in NOT_RUN)
    owners = {path: path.stem.removesuffix("_shape") for path in every}
    wanted, todo = set[str](), [own_name(family)]
    while todo:
        wanted.add(name := todo.pop())
        own = [path for path in every if owners[path] == name]
        others = {owner for path in own for owner in _imported(path) if owner in names}
        todo += sorted(others - wanted)
    return [path for path in every if owners[path] in wanted or owners[path] not in names]


def _imported(file: Path) -> set[str]:
    """Return the names of the families' files among those that ``file`` imports."""
    found = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    modules = {node.module or "" for node in found if isinstance(node, ast.ImportFrom)}
    return {module.removesuffix("_shape") for module in modules}


def family_digest(family: str, folder: Path = pins.FOLDER) -> str:
    """Return the sha256 of the code of ``family``: comments, docstrings and layout do not count."""
    code = {
        path.name: code_of(path.read_text(encoding="utf-8")) for path in files_of(family, folder)
    }
    return hashlib.sha256(json.dumps(code, sort_keys=True).encode()).hexdigest()


def code_of(text: str) -> Any:
    """Return the syntax tree of ``text`` as lists, the same on every version of Python."""
    return _plain(ast.parse(text))


def _plain(node: Any) -> Any:
    if isinstance(node, list):
        return [_plain(each) for each in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = {
        name: value
        for name, value in ast.iter_fields(node)
        if name not in _NO_CODE and value is not None and value != []
    }
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        fields["body"] = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return [type(node).__name__, *([name, _plain(value)] for name, value in fields.items())]


def of_folder(version: str, families: Iterable[str], folder: Path = pins.FOLDER) -> Reference:
    """Return the row of the reference in ``folder``."""
    digests = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.py")
    }
    return Reference(
        version,
        pins.reference_digest(digests),
        {family: family_digest(family, folder) for family in families},
    )


def renewed(table: ReferenceTable, row: Reference, frozen: str | None) -> ReferenceTable:
    """Return ``table`` with ``row`` as its last.

    Args:
        table: as it is.
        row: that of this version, for the reference as it is now.
        frozen: why this version's row cannot be changed any more; None: it can.

    Raises:
        FrozenError: the reference has changed, and its version has not.
    """
    last = table.references[-1]
    if row == last:
        return table
    rows = table.references
    if row.version == last.version:
        if frozen is not None:
            raise FrozenError(
                f"the reference has changed, and llmb {row.version} is frozen ({frozen}): raise "
                f"__version__ in llmb/__init__.py, then {COMMAND}"
            )
        rows = rows[:-1]
    elif row.version in {older.version for older in rows}:
        raise FrozenError(f"llmb {row.version} is older than {last.version}: raise __version__")
    return replace(table, references=(*rows, row))


def why_frozen(version: str, root: Path = ROOT) -> str | None:
    """Return why the reference of ``version`` cannot change any more, None where it can."""
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    begin = f"## {version} ("
    released = [line for line in changes if line.startswith(begin) and "(unreleased)" not in line]
    if released:
        return f'CHANGELOG.md has the section "{released[0]}"'
    for path in sorted((root / "submissions").rglob("record.json")):
        if json.loads(path.read_bytes())["llmb_version"] == version:
            return f"{path.parent.relative_to(root)} was made with it"
    return None


def text_of(table: ReferenceTable) -> str:
    """Return ``table`` as it is written."""
    return json.dumps(asdict(table), indent=1) + "\n"


def main() -> int:
    """Renew both files; return the exit code."""
    try:
        table = renewed(references.table(), of_folder(__version__, SHAPES), why_frozen(__version__))
    except FrozenError as error:
        print(error, file=sys.stderr)
        return 1
    digests = {name: pin for name, pin in pins.actual_digests().items() if name.endswith(".py")}
    listing = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
    pins.PINS_FILE.write_text(listing, encoding="utf-8")
    references.TABLE.write_text(text_of(table), encoding="utf-8")
    last = table.references[-1]
    print(f"llmb {last.version}: reference {last.digest[:12]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
