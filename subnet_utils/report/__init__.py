"""What a run reports: verdicts on the paper's values and ours, and figures and tables with where they came from. HTML
pages (`python -m subnet_utils.report tiny`) are not imported here: nbconvert takes two seconds."""

from subnet_utils.report.comparison import AGREES, DIFFERS, NOT_COMPARABLE, VERDICTS, compare, verdict
from subnet_utils.report.results import Results

__all__ = ["AGREES", "DIFFERS", "NOT_COMPARABLE", "VERDICTS", "Results", "compare", "verdict"]
