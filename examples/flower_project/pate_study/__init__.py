"""A study of pate_fed as a Flower project."""
