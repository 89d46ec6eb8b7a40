"""One self-contained page about a comparison, and the table that the command line prints as well."""

from leanbayes.lab.report.guarantee import ranking_line
from leanbayes.lab.report.page import write_report
from leanbayes.lab.report.table import Cell, Row, comparison_table, describe

__all__ = ["Cell", "Row", "comparison_table", "describe", "ranking_line", "write_report"]
