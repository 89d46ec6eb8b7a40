"""One of everything that a package can add to LeanBayes, each in one file."""
