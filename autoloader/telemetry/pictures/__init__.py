"""Charts and pages: one engine for the run report, the study's page, the bench and the docs.

``charts`` draws with matplotlib and returns SVG. Its text is text and its colours are CSS
variables, so that a page shows them in light and dark. Its ``render`` fills Jinja templates over
``base.html.jinja``, which has the theme. Both need the extra ``report``.

Not here: what a page says (``cli.report``, ``tune.page``).
"""
