"""What a run reports: `verdict` and `compare` put the paper's values and ours into one table, `Results` saves figures
and tables of a notebook with where they came from, and `python -m subnet_utils.report tiny` makes the HTML pages of a
profile. (Those are not imported here: notebooks have no use for them, and nbconvert takes two seconds.)
"""

from subnet_utils.report.comparison import AGREES, DIFFERS, NOT_COMPARABLE, VERDICTS, compare, verdict
from subnet_utils.report.results import Results

__all__ = ["AGREES", "DIFFERS", "NOT_COMPARABLE", "VERDICTS", "Results", "compare", "verdict"]
