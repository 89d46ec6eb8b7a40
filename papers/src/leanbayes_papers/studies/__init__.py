"""One file for each study. A file here that holds an `EXPERIMENT` is found by `leanbayes reproduce`."""
