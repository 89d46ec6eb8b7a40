"""One file for each form of data that `leanbayes.lab.data.read` understands."""
