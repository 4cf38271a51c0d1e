"""The templates of pages, and the policy that lets a page load and run nothing."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from llmb.report.render import visible

#: Longest text of a record on a page, in characters.
_LONGEST = 2_000


def resource(name: str) -> str:
    """Return the text of a file in ``template``. Example: ``run.css``."""
    return files("llmb.report").joinpath("template").joinpath(name).read_text(encoding="utf-8")


def policy(style: str, script: str | None = None) -> str:
    """Return the Content-Security-Policy that allows only ``style`` and ``script``, by digest.

    A page without a script may run none. Nothing may be loaded.
    """
    scripts = "'none'" if script is None else _digest(script)
    return (
        f"default-src 'none'; style-src {_digest(style)}; script-src {scripts}; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page_of(template: str, styles: tuple[str, ...], **values: Any) -> str:
    """Return the page of ``template`` with the ``values``; the page has no script.

    Every text that the template prints is escaped, hidden characters as well (``render.visible``),
    and cut to 2,000 characters.
    """
    environment = Environment(
        loader=FunctionLoader(resource),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    style = "\n".join(map(resource, styles))
    found = environment.get_template(template)
    return found.render(style=Markup(style), policy=policy(style), **values)


def _shown(value: Any) -> Any:
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return visible(value if len(value) <= _LONGEST else value[: _LONGEST - 3] + "...")
