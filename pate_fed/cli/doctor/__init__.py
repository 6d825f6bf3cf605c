"""`pate-fed doctor`: what would stop a study, found before it starts. Changes nothing, and sends no data.

Every check that the programs make themselves is theirs, called from here; what they cannot know before they
run (the connection to the coordinator, room on the disk, a clock that nobody sets) is looked at here.
"""
