"""One file for each family of data sets with a name. A file holds its `DataSet`s in a tuple called SETS."""
