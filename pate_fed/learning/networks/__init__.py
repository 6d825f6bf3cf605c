"""Networks: classifiers, generators, heads, and the public encoder below them."""
