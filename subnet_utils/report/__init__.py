"""What a run reports: paper-versus-ours tables, the record of what a notebook made, and the site that shows it all.

- `compare` (comparison.py): the paper's value beside ours, with an automatic verdict.
- `Book` (book.py): saves a notebook's figures and tables and writes the manifest that says where they came from.
- `build_site`, `summary` (site.py): the HTML report of a profile, made of manifests and executed notebooks.

`python -m subnet_utils.report tiny` builds the site of a profile and says where everything is.
"""

from subnet_utils.report.book import Book
from subnet_utils.report.comparison import AGREES, DIFFERS, NOT_COMPARABLE, VERDICTS, compare
from subnet_utils.report.site import build_site, summary

__all__ = ["AGREES", "DIFFERS", "NOT_COMPARABLE", "VERDICTS", "Book", "build_site", "compare", "summary"]
