"""What a run reports: `verdict` and `compare` put the paper's values and ours into one table, `Book` saves a notebook's
figures and tables with where they came from, and `python -m subnet_utils.report tiny` makes the HTML pages of a
profile. (Those are not imported here: notebooks have no use for them, and nbconvert takes two seconds.)
"""

from subnet_utils.report.book import Book
from subnet_utils.report.comparison import AGREES, DIFFERS, NOT_COMPARABLE, VERDICTS, compare, verdict

__all__ = ["AGREES", "DIFFERS", "NOT_COMPARABLE", "VERDICTS", "Book", "compare", "verdict"]
