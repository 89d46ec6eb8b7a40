"""The studies, one in each file. `leanbayes reproduce` finds a new file here by the `Study` that it holds."""
