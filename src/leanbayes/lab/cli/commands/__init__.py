"""The commands of ``leanbayes``: each file holds one record, and a new command is a new file."""
