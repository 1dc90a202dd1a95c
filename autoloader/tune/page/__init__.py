"""The report of a study, for people: one self-contained HTML file, or plain text.

Not here: deciding anything (``tune.study``, ``tune.finals``), the JSON answer (``tune.report``).
"""

from autoloader.tune.page.html import page, plain_text, write_page
from autoloader.tune.page.story import Figures, Story, TrialFate, fates

__all__ = ["Figures", "Story", "TrialFate", "fates", "page", "plain_text", "write_page"]
