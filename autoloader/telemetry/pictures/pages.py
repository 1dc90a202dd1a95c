"""Pages: Jinja templates over ``base.html.jinja``, each one HTML file that loads nothing.

Not here: charts (``telemetry.pictures.charts``), what a page says (the packages that have
templates).
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from autoloader.host.extras import needs
from autoloader.host.units import format_bytes
from autoloader.telemetry.pictures.charts import PALETTE, clock, number

_BASE = "base.html.jinja"


def render(package: str, template: str, **values: Any) -> str:
    """A page from the template of a package; texts are escaped, charts are passed through ``safe``.

    Raises:
        MissingExtraError: jinja2 or matplotlib is not installed.
    """
    with needs("a page", extra="report"):
        import jinja2

    def source(name: str) -> str:
        folder = files("autoloader.telemetry.pictures" if name == _BASE else package)
        return folder.joinpath(name).read_text(encoding="utf-8")

    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(source),
    )
    environment.globals.update(
        light={name: colour for name, (colour, _) in PALETTE.items()},
        dark={name: colour for name, (_, colour) in PALETTE.items()},
    )
    environment.filters.update(code=_code, number=number, clock=clock, size=format_bytes)
    return environment.get_template(template).render(**values)


def _code(text: str) -> Any:
    """Text with `backticks` as code."""
    from markupsafe import Markup, escape

    parts = [escape(part) for part in text.split("`")]
    marked = (Markup("<code>{}</code>").format(p) if n % 2 else p for n, p in enumerate(parts))
    return Markup("").join(marked)
