"""What a run reports: paper-versus-ours tables, the record of what a notebook made, and the site that shows it all.

- `verdict`, `compare` (comparison.py): the paper's value and ours, with a verdict by rule.
- `Book` (book.py): saves a notebook's figures and tables and writes the manifest that says where they came from.
- `site.build_site`, `site.summary`: the HTML report of a profile, made of manifests and executed notebooks, and
  `site.missing_places`: what of the paper's figures and tables (places.py) the profile did not make. Not imported here:
  notebooks have no use for them, and nbconvert behind them takes two seconds.

`python -m subnet_utils.report tiny` builds the site of a profile and says where everything is.
"""

from subnet_utils.report.book import Book
from subnet_utils.report.comparison import AGREES, DIFFERS, NOT_COMPARABLE, VERDICTS, compare, verdict

__all__ = ["AGREES", "DIFFERS", "NOT_COMPARABLE", "VERDICTS", "Book", "compare", "verdict"]
