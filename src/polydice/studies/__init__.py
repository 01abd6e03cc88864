"""From single runs to what can be said about the losses: studies of many runs, their report, and the losses' curves.

Nothing but the command line imports from here.
"""
