"""A study's settings, each declared once: from study.toml or options to frozen, checked values."""
