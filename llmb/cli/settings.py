"""Defaults of options from a settings file and from variables; the command line wins.

click does the work: a settings file becomes click's ``default_map``, and ``LLMB_RUN_PRECISION`` is
click's own variable of ``llmb run --precision``. The order, the strongest first: command line,
variable, file, llmb's default. A file can set options, and nothing else: no plugin is installed, no
code is named. Docs: usage.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from llmb.cli.text import printable
from llmb.errors import LlmbError, UsageError, did_you_mean

if TYPE_CHECKING:
    from llmb.cli.settings_file import SettingsFile

#: Beginning of every variable: LLMB_RUN_PRECISION.
PREFIX = "LLMB"
#: Usual folder of runs.
RUNS = Path("runs")
#: Options that no file sets: a draw, a promise, a server, and a file itself.
_NEVER = frozenset({"nonce", "seed_commitment", "timestamp", "config"})
#: Options that only a file named by ``--config`` sets: files of this machine that a run reads.
_READS = frozenset({"data", "tokenizer", "weights"})
#: Options of ``llmb run`` that do not change the run.
_NOT_OF_RUN = ("output_dir", "tags", "as_json", "quiet")
#: Most options to name in a line; ``config.toml`` of a run has 16 and more.
_MOST_SHOWN = 8
_ORDER = (
    ParameterSource.DEFAULT,
    ParameterSource.DEFAULT_MAP,
    ParameterSource.ENVIRONMENT,
    ParameterSource.COMMANDLINE,
)


class Setting(NamedTuple):
    """The value of an option, and the source of the value."""

    #: Name on the command line, without dashes.
    option: str
    value: Any
    #: ``llmb.toml:3``, ``LLMB_RUN_PRECISION``, ``command line``, or ``default``.
    source: str


def strength(ctx: click.Context, name: str) -> int:
    """Return how strong the source of option ``name`` is: 0 for a default, 3 for a typed option."""
    source = ctx.get_parameter_source(name)
    return _ORDER.index(source) if source in _ORDER else len(_ORDER) - 1


def load(ctx: click.Context, name: str, command: click.Command) -> None:
    """Give the context of ``llmb`` the defaults of the command ``name``, from the file found here.

    Raises:
        UsageError: the file, or a variable of the command, names an unknown option.
    """
    from llmb.cli import settings_file

    _check_variables(ctx, name, command)
    if name not in settings_file.COMMANDS:
        return
    found = settings_file.discovered()
    if found is not None:
        values = defaults(found, name, command)
        ctx.default_map = {name: values}
        _files(ctx).update(dict.fromkeys(values, found))


def use(ctx: click.Context, path: Path) -> None:
    """Take the settings of the run from ``path`` instead of llmb.toml, as ``--config`` asks.

    What is no setting of the run stays as llmb.toml says: the folder of runs, tags, the output.

    Raises:
        UsageError: as ``load``.
    """
    from llmb.cli import settings_file

    found = settings_file.named(path)
    values = defaults(found, str(ctx.command.name), ctx.command)
    files, before = _files(ctx), {**(ctx.default_map or {})}
    kept = {name: value for name, value in before.items() if name in _NOT_OF_RUN}
    ctx.default_map = {**kept, **values}
    files.update(dict.fromkeys(values, found))


def _files(ctx: click.Context) -> dict[str, SettingsFile]:
    """Return option -> the file that sets the option, of the running command."""
    found: dict[str, SettingsFile] = ctx.meta.setdefault(__name__, {})
    return found


def defaults(found: SettingsFile, name: str, command: click.Command) -> dict[str, Any]:
    """Return click's name -> value of each option of ``command`` that the file sets.

    Raises:
        UsageError: an unknown option, an option that no file sets, or a wrong value.
    """
    options = {
        word.lstrip("-"): param
        for param in command.params
        if isinstance(param, click.Option)
        for word in param.opts
        if word.startswith("--")
    }
    context = click.Context(command, info_name=name)
    values = {}
    for key, value in found.tables.get(name, {}).items():
        place = f"{found.place(name, key)}: {key}"
        if key not in options:
            raise UsageError(f"{place} is no option of llmb {name}{did_you_mean(key, options)}")
        param = options[key]
        _check_allowed(place, param, found)
        values[str(param.name)] = _value(place, param, value, found, context)
    return values


def _check_allowed(place: str, param: click.Option, found: SettingsFile) -> None:
    """Refuse options for paths and servers: a stranger's file must not choose where llmb writes."""
    is_path = isinstance(param.type, click.Path | click.types.FuncParamType)
    if param.name in _NEVER or (is_path and param.name not in ("output_dir", *_READS)):
        raise UsageError(f"{place} is refused: give it on the command line, or as a variable")
    if param.name in _READS and not found.is_named:
        raise UsageError(
            f"{place} is refused in a file that llmb finds itself: give it on the command line, or "
            "name the file with --config"
        )


def _value(
    place: str, param: click.Option, value: Any, found: SettingsFile, context: click.Context
) -> Any:
    """Return a value of the file as click's default.

    Raises:
        UsageError: the value is of another type, or not possible.
    """
    if param.is_flag != isinstance(value, bool):
        wanted = "true or false" if param.is_flag else "text or a number"
        raise UsageError(f"{place} = {str(value)[:60]}: write {wanted}")
    if param.is_flag:
        return value
    several = value if isinstance(value, list) else [value]
    if isinstance(value, list) and not param.multiple:
        raise UsageError(f"{place}: one value is needed, not a list")
    if not all(isinstance(one, (str, int, float)) and not isinstance(one, bool) for one in several):
        raise UsageError(f"{place}: write text or a number")
    texts = [_placed(place, param, str(item), found) for item in several]
    given: Any = texts if param.multiple else texts[0]
    try:
        param.type_cast_value(context, given)
    except click.ClickException as error:
        raise UsageError(f"{place} = {str(value)[:60]}: {error.message}") from None
    return given


def _placed(place: str, param: click.Option, text: str, found: SettingsFile) -> str:
    """Return a path of the file as seen from the current folder; other text unchanged.

    Raises:
        UsageError: a folder to write to is not inside the folder of the file.
    """
    if param.name == "workload" and text.endswith(".json"):
        return os.path.join(found.folder, text)
    if param.name != "output_dir":
        return text
    root = os.path.realpath(found.folder)
    if os.path.commonpath([root, os.path.realpath(os.path.join(root, text))]) != root:
        raise UsageError(
            f"{place} = {text[:60]}: a file names a folder beside the file or below, such as "
            "runs; give another folder on the command line, or as a variable"
        )
    return os.path.join(found.folder, text)


def _check_variables(ctx: click.Context, name: str, command: click.Command) -> None:
    """Refuse a variable such as LLMB_RUN_PRECISON, which would be overlooked."""
    from llmb.config import environment

    if isinstance(command, click.Group) or ctx.auto_envvar_prefix is None:
        return
    begin = f"{PREFIX}_{name.upper().replace('-', '_')}_"
    known = [f"{begin}{str(param.name).upper()}" for param in command.params]
    for variable in environment():
        if variable.startswith(begin) and variable not in known:
            raise UsageError(
                f"{variable}: llmb {name} has no such option{did_you_mean(variable, known)}"
            )


def settings(ctx: click.Context) -> Iterator[Setting]:
    """Yield every option of the command of ``ctx`` with the value and the source of the value."""
    for param in ctx.command.params:
        if not isinstance(param, click.Option) or param.name in ("help", "version"):
            continue
        option = max(param.opts, key=len).lstrip("-")
        source = ctx.get_parameter_source(str(param.name))
        if source is ParameterSource.DEFAULT_MAP:
            where = _files(ctx)[str(param.name)].place(str(ctx.command.name), option)
        elif source is ParameterSource.ENVIRONMENT:
            where = f"{ctx.auto_envvar_prefix}_{str(param.name).upper()}"
        else:
            where = "command line" if source is ParameterSource.COMMANDLINE else "default"
        yield Setting(option, ctx.params.get(str(param.name)), where)


def given_elsewhere(ctx: click.Context) -> dict[str, Any]:
    """Return name -> value of each option that a file or a variable sets."""
    weak = (ParameterSource.DEFAULT_MAP, ParameterSource.ENVIRONMENT)
    return {name: v for name, v in ctx.params.items() if ctx.get_parameter_source(name) in weak}


def announce(ctx: click.Context, elsewhere: dict[str, Any]) -> None:
    """Say on stderr which options of ``elsewhere`` a file or a variable has set."""
    by_file: dict[str, list[str]] = {}
    options = {str(p.name): max(p.opts, key=len).lstrip("-") for p in ctx.command.params}
    files = _files(ctx)
    for name, value in elsewhere.items():
        is_variable = ctx.get_parameter_source(name) is ParameterSource.ENVIRONMENT
        file = "the environment" if is_variable or name not in files else str(files[name].path)
        shown = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        by_file.setdefault(file, []).append(f"{options[name]} = {shown[:60]}")
    for file, texts in by_file.items():
        shown = ", ".join(texts) if len(texts) <= _MOST_SHOWN else f"{len(texts)} options"
        click.echo(f"llmb: {printable(f'{file} sets {shown}')}", err=True)


def words_of_ranks(
    ctx: click.Context, elsewhere: dict[str, Any], flags: dict[str, Any], typed: Sequence[str]
) -> list[str]:
    """Return the arguments of ``llmb`` for a rank: every option as a word, for no file is read.

    ``typed`` are the words after the name of the command. An option of ``elsewhere`` that a recipe,
    a preset or another option has overridden in ``flags`` is left out.
    """
    found = ["--isolated", str(ctx.command.name)]
    for param in ctx.command.params:
        name = str(param.name)
        if name not in elsewhere or name == "config" or flags[name] != elsewhere[name]:
            continue
        if name == "batch_size" and flags["micro_batch_size"] is not None:
            continue
        option, value = max(param.opts, key=len), elsewhere[name]
        if isinstance(value, bool):
            found += [option] if value else list(param.secondary_opts[-1:])
        else:
            several = value if isinstance(value, tuple) else (value,)
            found += [f"{option}={item}" for item in several]
    skip = False
    for word in typed:
        if not skip and word.partition("=")[0] != "--config":
            found.append(word)
        skip = not skip and word == "--config"
    return found


def runs_folder(ctx: click.Context | None) -> Path:
    """Return the folder of runs whose names count here: the ``--output-dir`` of ``llmb run``.

    The variable LLMB_RUN_OUTPUT_DIR or a settings file may name another folder than ``runs``.

    Raises:
        UsageError: the settings file cannot be used.
    """
    from llmb.cli import settings_file
    from llmb.config import environment

    if ctx is not None and ctx.find_root().params.get("isolated"):
        return RUNS
    variable = environment().get(f"{PREFIX}_RUN_OUTPUT_DIR")
    if variable:
        return Path(variable)
    found = settings_file.discovered()
    if found is None or "output-dir" not in found.tables.get("run", {}):
        return RUNS
    from llmb.cli.run import command

    return Path(defaults(found, "run", command)["output_dir"])


def completed_runs_folder(ctx: click.Context) -> Path:
    """Return ``runs_folder`` for the shell's completion, which shows no error."""
    with suppress(LlmbError):
        return runs_folder(ctx)
    return RUNS
