"""Reports: tables of runs in the paper's layout, with the paper's figures beside ours.

found = find(["runs/listops"])
print(markdown(tables(found.runs)))
"""

from beamtree.evaluation.report.summary import Found, ReportedRun, ReportRow, Table, find, tables
from beamtree.evaluation.report.writing import latex, markdown, records

__all__ = ["Found", "ReportRow", "ReportedRun", "Table", "find", "latex", "markdown", "records", "tables"]
