"""Inputs by the million, cut into shards: folders, tables, WebDataset archives and Parquet files."""

from leanbayes.lab.shards.form import FORMS, Cases, Form, ListedCases, cut, form_of, read_part

__all__ = ["FORMS", "Cases", "Form", "ListedCases", "cut", "form_of", "read_part"]
