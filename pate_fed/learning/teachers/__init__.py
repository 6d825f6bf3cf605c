"""Teachers, each of which learns from one party's private records and votes."""
