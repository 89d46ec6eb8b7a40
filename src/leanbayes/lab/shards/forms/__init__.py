"""The forms of inputs that can be cut into shards, one in each file."""
