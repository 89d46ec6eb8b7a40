"""Data sets with names, one file for each family. A file holds its `DataSet`s in a tuple called SETS."""
