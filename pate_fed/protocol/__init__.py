"""What coordinator and hospital say to each other, typed, both ways: terms, messages, refusals."""
