"""Public, non-negative feature maps for class sums: fixed before a private record is looked at."""
